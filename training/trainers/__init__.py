"""The methods in other training loops: losses for sentence-transformers, models for `transformers.Trainer`.

May import every wing above it. The losses need sentence-transformers.
"""
