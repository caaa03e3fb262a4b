"""A run: build a model, train it, evaluate it and save it, over seeds, stages and processes.

May import every wing above it. Quickstart and benchmarks build on it.
"""
