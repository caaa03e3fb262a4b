"""Convert checkpoints that other code wrote into repositories of the zoo. The only place that reads pickles.

May import `cards`, `loading` and `publishing`; trains nothing.
"""
