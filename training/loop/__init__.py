"""A run: the model is built, trained, evaluated and saved, over seeds, stages and processes.

May know every wing above; quickstart and benchmarks build on it.
"""
