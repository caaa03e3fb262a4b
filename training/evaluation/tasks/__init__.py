"""The tasks of the suites: their data, their protocols, their metrics.

May know loading, and the metrics; no task knows a model.
"""
