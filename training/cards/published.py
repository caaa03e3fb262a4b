"""The numbers that papers report for the recipes, and the check whether a run may be compared with them."""

from __future__ import annotations

from collections.abc import Iterable
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
        scores: the printed number of each task; averages count as tasks.
        deviations: the standard deviation over the paper's runs of each task, if the paper reports it.
        note: why the row is not fully comparable.
    """

    source: str
    scores: dict[str, float]
    deviations: dict[str, float]
    note: str | None = None

    def shown(self, task: str) -> str:
        """Return the number of a task as text, with its deviation if it has one."""
        deviation = f" ± {self.deviations[task]}" if task in self.deviations else ""
        return f"{self.scores[task]:.2f}{deviation}"


def published(recipe: str) -> list[PublishedRow]:
    """Return the rows of the papers for a recipe; an empty list if no paper reports it.

    They are in its method's entry (`method_texts`), each with

    * `source`: paper and table. Where a paper is quoted by a later one, both are named.
    * `suite`: `sts` (STS12, STS13, STS14, STS15, STS16, STS-B, SICK-R; Spearman × 100) or `transfer` (MR, CR, SUBJ,
      MPQA, SST2, TREC, MRPC; accuracy).
    * `values`, `average`: as printed. There are no values if only the average is known.
    * `deviations`, `deviation`: of values and average over the paper's runs, if the paper reports them.
    * `note`: why the row is not fully comparable, or what is inconsistent in it.

    Args:
        recipe: the name of the recipe.

    Example:
        >>> published("simcse-bert-base-uncased")[0].scores["STS12"]
        68.4
    """
    of_methods = [entry.get("published", {}) for entry in method_entries().values()]
    return published_rows(row for entries in of_methods for row in entries.get(recipe, []))


def published_rows(entries: Iterable[dict]) -> list[PublishedRow]:
    """Return entries with the keys that `published` describes as rows."""
    return [
        PublishedRow(
            source=row["source"],
            scores=_by_task(row, "values", "average"),
            deviations=_by_task(row, "deviations", "deviation"),
            note=row.get("note"),
        )
        for row in entries
    ]


def _by_task(entry: dict, values: str, average: str) -> dict[str, float]:
    *tasks, total = SUITES[entry["suite"]]
    scores = dict(zip(tasks, entry[values], strict=True)) if values in entry else {}
    return {**scores, total: entry[average]} if average in entry else scores


def comparable(recipe: str | None, method: str, base_model: str | None) -> list[PublishedRow]:
    """Return the papers' rows that a run may be compared with.

    These are the rows of its recipe, if the run has the method and the base model of the recipe. Runs on a stand-in
    encoder are never compared with a paper.

    Args:
        recipe: the name of the recipe that the run started from; `None` if it is not known.
        method, base_model: those of the run.

    Example:
        >>> comparable("simcse-bert-base-uncased", "simcse", "./minilm")
        []
    """
    if not recipe or not (rows := published(recipe)):
        return []
    original = load_recipe(recipe)
    return rows if (original.method, original.base_model) == (method, base_model) else []


def same_pairs(results: list[dict]) -> set[str]:
    """Return the tasks measured on the pairs of the papers, and the average if all seven STS tasks are among them.

    MTEB's SICK-R, for example, has other pairs.

    Args:
        results: the results of one model, each with `task` and `rows`.
    """
    tasks = {result["task"] for result in results if ROWS.get(result["task"], result["rows"]) == result["rows"]}
    return tasks | {AVERAGE} if set(STS_TASKS) <= tasks else tasks
