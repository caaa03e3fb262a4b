"""Which clients of other people read a repository, and why the others do not: what `tests/foreign_clients` measured.

May import `files`, and nothing else of training; loads no model.
"""

from .table import RESULTS, filled

__all__ = ["RESULTS", "filled"]
