"""Embedding a file of any size into shards of vectors.

May import the encoders of evaluation, and data.
"""
