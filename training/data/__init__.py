"""Training data: read texts from files and data sets, tokenise them and make padded batches of views.

May import evaluation (STS-B is training data too) and the wings above it.
"""
