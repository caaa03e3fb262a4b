"""Encoders and tokenizers from the Hub or a directory, safely: no code is run, no pickle is read.

May know recipes; nothing here trains, evaluates or writes.
"""
