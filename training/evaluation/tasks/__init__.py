"""The tasks of the suites: their data, protocols and metrics.

May know the metrics. A task never knows a model, only the vectors of its sentences.
"""
