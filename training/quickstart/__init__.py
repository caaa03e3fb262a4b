"""The embedded default: a small English world, a base model trained on it, a run of SimCSE.

May know every wing above.
"""
