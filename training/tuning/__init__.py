"""Searching for the values of a recipe's keys: spaces, trials, objectives, and the run of the winner.

May import `reproducing`, whose runs the trials are, and every wing before it.
"""
