"""How fast and how large: each benchmark times two ways to do one thing.

May know every wing above.
"""
