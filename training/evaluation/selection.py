"""What chooses the best checkpoint of a run, or the best run of a search: a mean over dev tasks."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import UserError
from ..recipes.keys import DEV_SUITES
from .sentence_vectors import Encode
from .suites import LOADERS, Task, evaluate_tasks
from .tasks.names import TRANSFER_TASKS
from .tasks.sts import PairTask, Vectors
from .tasks.transfer import TransferTask, load_transfer_task

FEWEST_PAIRS = 10  # in a half of the pairs; a correlation of fewer says nothing


@dataclass
class TransferDevTask(TransferTask):
    """A transfer task whose result is the accuracy on dev, so that no choice sees the test accuracy."""

    def results(self, vectors: Vectors) -> list[dict]:
        return [{**result, "value": result["dev"]} for result in super().results(vectors)]


def load_dev_tasks(choice: str, data: str) -> list[Task]:
    """Read the tasks of a choice for use in training: transfer tasks in the protocol `fast`, on dev alone."""
    suites = DEV_SUITES.get(choice, DEV_SUITES["sts-dev"])
    if suites == ("transfer",):
        tasks = [load_transfer_task(name, data, "fast") for name in TRANSFER_TASKS]
        return [TransferDevTask(**vars(replace(task, name=f"{task.name}-dev"))) for task in tasks]
    return [task for suite in suites for task in LOADERS[suite](data)]


def hold_out(task: PairTask) -> tuple[PairTask, PairTask]:
    """Split pairs in two halves: one that chooses, `dev`, and one that judges, `test`.

    A pair's half depends on its texts alone, so that it stays the same when the file grows or its lines are moved.

    Example:
        >>> pairs = [(f"a {number}", "b") for number in range(40)]
        >>> [len(half.pairs) for half in hold_out(PairTask("toy", pairs, [1.0, 2.0] * 20, "example"))]
        [19, 21]
    """
    halves = []
    digests = [hashlib.sha256("\t".join(pair).encode()).digest()[0] % 2 for pair in task.pairs]
    for half, name in enumerate(("dev", "test")):
        rows = [row for row, digest in enumerate(digests) if digest == half]
        if len(rows) < FEWEST_PAIRS or len({task.scores[row] for row in rows}) == 1:
            raise UserError(
                f"dev_file: {len(task.pairs)} pairs are too few, or too alike, to choose a checkpoint and judge it; "
                "give other ones as --test_file, or --eval_data none"
            )
        halves.append(task.part(name, rows))
    return halves[0], halves[1]


def dev_score(encode: Encode, tasks: Sequence[Task]) -> float:
    """Return the mean score over dev tasks.

    Example:
        >>> import numpy as np
        >>> from csezoo.training.evaluation.tasks.sts import PairTask
        >>> pairs = [("a", "a"), ("a", "b"), ("a", "ab")]
        >>> tasks = [PairTask(name, pairs, scores, "toy") for name, scores in (("up", [5, 0, 3]), ("down", [0, 5, 3]))]
        >>> letters = lambda texts: np.array([[text.count("a"), text.count("b")] for text in texts], float)
        >>> dev_score(letters, tasks)
        0.0
    """
    return statistics.mean(result["value"] for result in evaluate_tasks(encode, tasks))
