"""How fast and how large: each benchmark times two ways to do one thing.

May import every wing above.
"""
