"""Embedding a file of any size into shards of vectors.

May know the encoders of evaluation, and data.
"""
