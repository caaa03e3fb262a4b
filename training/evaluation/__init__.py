"""Evaluation of any encoder on suites of tasks; every result carries its receipt.

May import loading and recipes. It never trains a model of the zoo.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .suites import evaluate, evaluate_tasks

__all__ = ["evaluate", "evaluate_tasks"]


def __getattr__(name: str) -> Any:
    """Import the suites when they are asked for: the cards need the names of tasks, and not torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import suites

    return getattr(suites, name)
