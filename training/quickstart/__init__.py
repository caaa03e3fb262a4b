"""The recipe `quickstart`, which needs no download: a small English world, a base model and a SimCSE run on it.

May import every wing except `benchmarks` and `cli`.
"""
