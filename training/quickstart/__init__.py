"""The quickstart recipes, which need no download: a small English world, a base model, and runs on them.

May import every wing except `benchmarks` and `cli`.
"""
