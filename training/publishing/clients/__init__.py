"""Which clients of other people load an export, and why the others do not: what `tests/foreign_clients` measured.

May import `files`, and nothing else of training; loads no model.
"""

from .table import RESULTS, filled, works_with

__all__ = ["RESULTS", "filled", "works_with"]
