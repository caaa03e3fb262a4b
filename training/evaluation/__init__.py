"""Evaluation of any encoder on suites of tasks; every result carries its receipt.

May import loading and recipes. It never trains a model of the zoo.
"""

from .suites import evaluate, evaluate_tasks

__all__ = ["evaluate", "evaluate_tasks"]
