"""The numbers that papers report for the recipes, and the check whether a run may be compared with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..evaluation.report import AVERAGE
from ..evaluation.tasks.names import RELEASED_PAIRS, STS_TASKS, TRANSFER_TASKS
from .method_texts import method_entries

TRANSFER_AVERAGE = "average of the transfer tasks"
DEFAULT = "SentEval default"
SUITES = {"sts": (*STS_TASKS, AVERAGE), "transfer": (*TRANSFER_TASKS, TRANSFER_AVERAGE)}


@dataclass
class PublishedRow:
    """A row of a paper's table."""

    source: str  # paper and table
    scores: dict[str, float]  # the printed number of each task; averages count as tasks
    deviations: dict[str, float]  # the standard deviation over the paper's runs of each task, if the paper reports it
    note: str | None = None  # why the row is not fully comparable

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


def comparable(recipe: str | None, changed: Sequence[str] | None) -> list[PublishedRow]:
    """Return the papers' rows that a run may be compared with: those of its recipe, unless it changed it.

    Example:
        >>> [row.source for row in comparable("prdsimcse-roberta-base", [])]
        ['Wang and Lv 2024 (PrdSimCSE), table 4']
        >>> comparable("prdsimcse-roberta-base", ["batch_size"])
        []
    """
    return published(recipe) if recipe and changed == [] else []


def same_pairs(results: list[dict]) -> set[str]:
    """Return the tasks measured as in the papers, and the average of each suite of which all tasks are among them.

    MTEB's SICK-R, for example, has other pairs, and `transfer-fast` and `transfer-mlp` have other protocols.
    """
    tasks = {result["task"] for result in results if _as_in_papers(result)}
    return tasks | {average for *suite, average in SUITES.values() if set(suite) <= tasks}


def _as_in_papers(result: dict) -> bool:
    if result.get("suite") == "pairs" or result.get("protocol") not in (None, DEFAULT):
        return False
    return RELEASED_PAIRS.get(result["task"], result["rows"]) == result["rows"]
