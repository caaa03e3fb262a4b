"""Any encoder on any suite of tasks, every result with its receipt.

May know loading and recipes; it never trains a model of the zoo.
"""

from .suites import evaluate, evaluate_tasks

__all__ = ["evaluate", "evaluate_tasks"]
