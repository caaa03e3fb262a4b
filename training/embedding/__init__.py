"""A file of any size to vectors, in shards.

May know encoders of evaluation.
"""
