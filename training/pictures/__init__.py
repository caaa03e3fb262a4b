"""Everything that is drawn: curves of a run, portraits of a model, weakened tokens, benchmarks.

May know evaluation; matplotlib is imported where it draws.
"""
