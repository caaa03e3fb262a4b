"""Pictures: curves of a run, portraits of a model, weakened tokens, benchmarks.

May know evaluation. Each function that draws imports matplotlib itself.
"""
