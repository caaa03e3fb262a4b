"""Embedding a file of any size into shards of vectors, and texts in a scikit-learn pipeline.

May import the encoders of evaluation, and data.
"""
