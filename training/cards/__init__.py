"""Model cards and their tables, the numbers of the papers, and the static website.

May know `recipes`, `evaluation` and `pictures`; reads results, measures nothing.
"""
