"""Ray and Slurm: both call a function for each task of a table or a search, on another machine, and wait for it.

May import `errors`, and nothing else of training.
"""
