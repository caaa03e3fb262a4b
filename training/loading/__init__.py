"""Load encoders and tokenizers from the Hub or a directory, without running their code or reading a pickle.

May import recipes. Nothing here trains, evaluates or writes.
"""
