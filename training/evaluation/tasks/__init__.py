"""The tasks of the suites: their data, protocols and metrics.

May import the metrics. A task never knows a model, only the vectors of its sentences.
"""
