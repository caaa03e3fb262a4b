"""Training texts: from files and data sets to token ids and padded batches of views.

May know evaluation (STS-B is training data too), and the wings above it.
"""
