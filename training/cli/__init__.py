"""The `csezoo` command: the parser and the sub-commands, grouped by topic.

May import every other wing; no wing may know it.
"""

from .parser import main

__all__ = ["main"]
