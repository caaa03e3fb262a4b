"""The `csezoo` command: the parser, and a file of commands for each wing.

May know every wing; no wing knows it.
"""

from .parser import main

__all__ = ["main"]
