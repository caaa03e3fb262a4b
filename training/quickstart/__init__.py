"""The embedded default: a small English world, a base model trained on it, a run of SimCSE.

May import every wing above.
"""
