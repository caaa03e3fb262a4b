"""Model cards, their tables, the papers' numbers, and the static site.

May know recipes, evaluation and pictures; it reads results and makes none.
"""
