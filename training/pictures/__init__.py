"""Pictures: curves of a run, portraits of a model, weakened tokens, benchmarks.

May import evaluation. Each function that draws imports matplotlib itself.
"""
