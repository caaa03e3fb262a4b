"""The columns of a table, and the value of a column for one run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..cards.published import TRANSFER_AVERAGE
from ..errors import UserError
from ..evaluation.report import AVERAGE
from ..evaluation.tasks.names import DEV_TASK, SICKR_DEV_TASK, STS_TASKS, SUITES, TRANSFER_TASKS

# Beside the suites of `csezoo evaluate`: what a run cost, fine-tuning, and what only the paper measures.
RUN, GLUE, PAPER = "run", "glue", "paper"
# What suite `run` knows of a run, see `measuring.run_costs`.
COSTS = ("minutes", "memory", "parameters", "training parameters", "added parameters", "labelled loss")
AVERAGES = {"sts": AVERAGE, "transfer": TRANSFER_AVERAGE, "transfer-mlp": TRANSFER_AVERAGE}


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str  # its heading
    # a suite of `csezoo evaluate`, `glue`, `run` for what the run cost, or `paper` for what the zoo cannot measure
    suite: str
    task: str | None = None  # a task of the suite, or one of `COSTS`; None is the mean over all tasks of the suite
    metric: str | None = None  # of the task, where it has several; `dev` is the accuracy on dev of a transfer task

    def __post_init__(self):
        suites = (*SUITES, RUN, GLUE, PAPER)
        if self.suite not in suites:
            raise UserError(f"column {self.name}: suite {self.suite!r} must be one of {', '.join(suites)}")
        if self.suite == RUN and self.task not in COSTS:
            raise UserError(f"column {self.name}: task {self.task!r} must be one of {', '.join(COSTS)}")

    @property
    def published_task(self) -> str | None:
        """The name under which `cards.published` has the papers' numbers; None if it has none for the column."""
        return (self.task or AVERAGES.get(self.suite)) if self.metric is None else None

    @property
    def averages_sts(self) -> bool:
        """Whether it has the average of the seven STS tests."""
        return (self.suite, self.task) == ("sts", None)

    def value(self, results: Sequence[dict]) -> float | None:
        """Return the value of the column among the results of one run; None if it is not among them.

        Example:
            >>> Column("Avg.", "sts").value([{"suite": "sts", "task": task, "metric": "spearman", "value": value}
            ...                              for task, value in (("STS12", 70.0), ("STS13", 80.0))])
            75.0
        """
        rows = [row for row in results if row["suite"] == self.suite and self.task in (None, row["task"])]
        if self.metric == "dev":
            values = [row["dev"] for row in rows]
        else:
            values = [row["value"] for row in rows if self.metric in (None, row["metric"])]
        return statistics.mean(values) if values else None


def _tasks(suite: str, tasks: Sequence[str], names: dict[str, str]) -> list[Column]:
    return [*(Column(names.get(task, task), suite, task) for task in tasks), Column("Avg.", suite)]


# What a manifest may name instead of single columns.
COLUMN_SETS = {
    "sts": _tasks("sts", STS_TASKS, {"STSBenchmark": "STS-B"}),
    "sts-average": [Column("STS avg.", "sts")],
    "transfer": _tasks("transfer", TRANSFER_TASKS, {}),
    "transfer-mlp": _tasks("transfer-mlp", TRANSFER_TASKS, {}),
    # The accuracy on the folds, or the dev set, that choose the penalty.
    "transfer-folds": [
        *(Column(f"{task} dev.", "transfer", task, "dev") for task in TRANSFER_TASKS),
        Column("Avg. dev.", "transfer", metric="dev"),
    ],
    "dev": [Column("STS-B dev.", "sts-dev")],
    "transfer-dev": [Column("Avg. transfer dev.", "transfer", metric="dev")],
}


def suite_of(task: str) -> str:
    """Return the suite of a task in the results of a training run, which do not name it.

    The transfer tasks there have chosen the checkpoint in another protocol than that of the suite `transfer`.

    Example:
        >>> suite_of("STSBenchmark-dev"), suite_of("STS12"), suite_of("MR-dev"), suite_of("test")
        ('sts-dev', 'sts', 'selection', 'own')
    """
    known = {"dev": "sts-dev", DEV_TASK: "sts-dev", SICKR_DEV_TASK: "sickr-dev"} | dict.fromkeys(STS_TASKS, "sts")
    return known.get(task, "selection" if task.endswith("-dev") else "own")
