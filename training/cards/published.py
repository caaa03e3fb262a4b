"""What the papers report for the recipes of the zoo, and whether it may stand beside a run's own numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ..evaluation.report import AVERAGE
from ..evaluation.tasks.sts import ROWS, STS_TASKS
from ..evaluation.tasks.transfer import TRANSFER_TASKS
from ..recipes import load_recipe
from .method_texts import method_entries

TRANSFER_AVERAGE = "average of the transfer tasks"
SUITES = {"sts": (*STS_TASKS, AVERAGE), "transfer": (*TRANSFER_TASKS, TRANSFER_AVERAGE)}


@dataclass
class PublishedRow:
    """A row of a paper's table.

    Args:
        source: paper and table.
        scores: task to the printed number; the averages are tasks of their own.
        deviations: task to the standard deviation over the paper's runs, where it gives them.
        note: what keeps the row from being comparable in full.
    """

    source: str
    scores: dict[str, float]
    deviations: dict[str, float]
    note: str | None = None

    def shown(self, task: str) -> str:
        """The number as a cell, with its deviation where it has one."""
        deviation = f" ± {self.deviations[task]}" if task in self.deviations else ""
        return f"{self.scores[task]:.2f}{deviation}"


def published(recipe: str) -> list[PublishedRow]:
    """The rows of a recipe; none where no paper reports it.

    They are in its method's entry (`method_texts`), each with

    * `source`: paper and table. Where a paper is quoted by a later one, both are named.
    * `suite`: `sts` (STS12, STS13, STS14, STS15, STS16, STS-B, SICK-R; Spearman × 100) or `transfer` (MR, CR, SUBJ,
      MPQA, SST2, TREC, MRPC; accuracy).
    * `values`, `average`: as printed; values are left out where only the average is known.
    * `deviations`, `deviation`: of values and average over the paper's runs, where it gives them.
    * `note`: what keeps the row from being comparable in full, or does not add up in it.

    Args:
        recipe: its name.

    Example:
        >>> published("simcse-bert-base-uncased")[0].scores["STS12"]
        68.4
    """
    rows = [row for entry in method_entries().values() for row in entry.get("published", {}).get(recipe, [])]
    return [
        PublishedRow(
            source=row["source"],
            scores=_by_task(row, "values", "average"),
            deviations=_by_task(row, "deviations", "deviation"),
            note=row.get("note"),
        )
        for row in rows
    ]


def _by_task(entry: dict, values: str, average: str) -> dict[str, float]:
    *tasks, total = SUITES[entry["suite"]]
    scores = dict(zip(tasks, entry[values], strict=True)) if values in entry else {}
    return {**scores, total: entry[average]} if average in entry else scores


def comparable(recipe: str | None, method: str, base_model: str | None) -> list[PublishedRow]:
    """The rows that a run may be set beside: those of its recipe, with the recipe's own method on its own base model.

    Args:
        recipe: the name of the recipe that the run was started from; `None` where it is not known.
        method, base_model: the run's. A stand-in's numbers never stand beside the paper's.

    Example:
        >>> comparable("simcse-bert-base-uncased", "simcse", "./minilm")
        []
    """
    if not recipe or not (rows := published(recipe)):
        return []
    own = load_recipe(recipe)
    return rows if (own.method, own.base_model) == (method, base_model) else []


def same_pairs(results: list[dict]) -> set[str]:
    """The tasks whose results are on the data of the papers; their average, if all seven STS tasks are.

    MTEB's SICK-R, for one, has other pairs than the papers'.

    Args:
        results: of one model, each with `task` and `rows`.
    """
    tasks = {result["task"] for result in results if ROWS.get(result["task"], result["rows"]) == result["rows"]}
    return tasks | {AVERAGE} if set(STS_TASKS) <= tasks else tasks
