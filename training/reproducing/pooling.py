"""Pooling a row over seeds and subsets, and comparing it with the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..loop.checkpoints import RECEIPT
from .columns import Column
from .measuring import read_results, run_training
from .plan import Planned


@dataclass(frozen=True)
class Cell:
    """A number of ours beside the paper's. What is not known is None."""

    # mean, sd, n: over all subsets and seeds; the standard deviation needs two
    mean: float | None = None
    sd: float | None = None
    n: int = 0
    # paper, paper_sd: as printed
    paper: float | None = None
    paper_sd: float | None = None
    difference: float | None = None  # ours minus the paper's
    z: float | None = None  # the difference in standard errors, see `compare`
    # low, high, p: of the difference from the row with which the table compares, see `against.py`
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Line:
    """A row with its cells by column, why it is not comparable, and the receipts of its runs."""

    name: str
    cells: dict[str, Cell]
    source: str
    reasons: list[str] = field(default_factory=list)
    runs: list[dict] = field(default_factory=list)
    x: float | None = None
    group: str = ""


def compare(values: Sequence[float], paper: float | None, paper_sd: float | None, paper_runs: int) -> Cell:
    """Compare the values of our runs with a number of a paper.

    z is Welch's statistic: the difference of the means over the root of the summed squared standard errors. Where only
    one side has a standard deviation, the other is assumed to have the same.

    Example:
        >>> cell = compare([76.0, 77.0, 78.0], 76.25, None, 1)
        >>> cell.difference, round(cell.z, 2)
        (0.75, 0.65)
    """
    if not values:
        return Cell(paper=paper, paper_sd=paper_sd)
    mean = statistics.mean(values)
    sd = statistics.stdev(values) if len(values) > 1 else None
    if paper is None:
        return Cell(mean, sd, len(values))
    ours, theirs = sd if sd is not None else paper_sd, paper_sd if paper_sd is not None else sd
    z = None
    if ours is not None and theirs is not None:
        error = math.sqrt(ours**2 / len(values) + theirs**2 / paper_runs)
        z = (mean - paper) / error if error else None
    return Cell(mean, sd, len(values), paper, paper_sd, mean - paper, z)


def pool(planned: Planned, columns: Sequence[Column], source: str, failed: dict[Path, str]) -> Line:
    """Pool the runs of a row."""
    row = planned.row
    results = {run.directory: read_results(run) for run in planned.runs}
    cells = {}
    for column in columns:
        values = [column.value(found) for found in results.values()]
        there = [value for value in values if value is not None]
        paper, paper_sd = row.values.get(column.name), row.deviations.get(column.name)
        cells[column.name] = compare(there, paper, paper_sd, row.runs)
    reasons = planned.reasons + _differences([run.directory for run in planned.runs])
    reasons += dict.fromkeys(f"a run failed: {reason}" for run, reason in failed.items() if run in results)
    if planned.runs and not any(results.values()) and not any(run in failed for run in results):
        reasons.append("not made yet")
    receipts = [{"run": str(path), **run_training(path), "results": found} for path, found in results.items()]
    return Line(row.label, cells, row.source or source, reasons, receipts, row.x, row.group)


def _differences(runs: Sequence[Path]) -> list[str]:
    """Return a reason for each thing in which runs of one recipe differ beside the seed, such as the training file."""
    names: dict[str, None] = {}
    first: dict[object, dict] = {}
    for run in runs:
        receipt = run_training(run).get("training", {}).get(RECEIPT, {})
        other = first.setdefault(receipt.get("recipe"), receipt)
        names |= dict.fromkeys(name for name in {**other, **receipt} if other.get(name) != receipt.get(name))
    return [f"its runs have different {name}" for name in names if name != "seed"]


def mark_other_data(lines: Sequence[Line]) -> list[Line]:
    """Mark the rows of a table in which a task was measured on other data than in the first row that has it."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    marked = []
    for line in lines:
        reasons: dict[str, None] = {}
        for result in (result for run in line.runs for result in run["results"] if "sha256" in result):
            name, sha256 = first.setdefault((result["suite"], result["task"]), (line.name, result["sha256"]))
            if sha256 != result["sha256"]:
                reasons[f"{result['task']} is measured on other data than before in {name}"] = None
        marked.append(replace(line, reasons=[*line.reasons, *reasons]))
    return marked
