"""Format results files as a table for a README, a paper or a spreadsheet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import UserError, one_line
from ..evaluation.report import AVERAGE
from ..evaluation.tasks.names import STS_TASKS, TRANSFER_TASKS
from ..files import read_json
from ..tables import csv_table, latex_table, markdown_table, mean_and_deviation, plain
from .published import DEFAULT, TRANSFER_AVERAGE, comparable, same_pairs

FORMATS: dict[str, Callable[..., str]] = {
    "markdown": lambda *rows: markdown_table(*(list(map(plain, row)) for row in rows)),
    "latex": latex_table,
    "csv": csv_table,
}
Row = tuple[str, dict[str, str]]


def read_rows(path: str) -> list[Row]:
    """Return the rows of a results file: the model's and, if a paper reports its recipe, the paper's and the distance.

    A cell is mean ± standard deviation over seeds, or one value. Distances are in standard deviations over seeds.
    """
    report = read_json(Path(path))
    try:
        name, results = model_name(report["model"]), report["results"]
        if "summary" in report:
            cells = {entry["task"]: f"{entry['mean']:.2f} ± {entry['sd']:.2f}" for entry in report["summary"]}
        else:
            scores = over_seeds([result for result in results if isinstance(result["value"], int | float)])
            cells = {name: mean_and_deviation(values) for name, values in scores.items()}
            for heading, tasks in ((AVERAGE, STS_TASKS), (TRANSFER_AVERAGE, TRANSFER_TASKS)):
                if set(tasks) <= scores.keys() and _made_alike(results, tasks):
                    cells[heading] = f"{statistics.mean(scores[task][0] for task in tasks):.2f}"
        if wrong := [task for task in cells if not isinstance(task, str)]:
            raise TypeError(f"the task {wrong[0]!r} is not text")
        return [(name, cells), *_published_rows(name, report)]
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a results file ({one_line(error)})") from error


def _made_alike(results: Sequence[dict], tasks: Sequence[str]) -> bool:
    """Return whether the newest results of these tasks have an average: one pooling, precision and protocol."""
    keys = ("pooling", "dtype", "protocol")
    return len({tuple(result.get(key) for key in keys) for result in newest(results) if column(result) in tasks}) == 1


def different_data(paths: Sequence[str]) -> list[str]:
    """Return the headings of the columns whose scores are not of the same data in all results files."""
    data: dict[str, set[str]] = {}
    for path in paths:
        newest = {column(result): result for result in read_json(Path(path))["results"] if "sha256" in result}
        for name, result in newest.items():
            data.setdefault(name, set()).add(result["sha256"])
    return [name for name, checksums in data.items() if len(checksums) > 1]


def model_name(model: str) -> str:
    """Return the last part of a Hub id or a path; for the `best/` of a run, the run and its seed.

    Example:
        >>> model_name("runs/simcse/best"), model_name("runs/simcse/seed-1/best/"), model_name("my-name/simcse")
        ('simcse', 'simcse/seed-1', 'simcse')
    """
    *above, name = Path(model).parts or ("",)
    if name == "best" and above:
        *above, name = above
    return f"{above[-1]}/{name}" if name.startswith("seed-") and above else name


def _published_rows(name: str, report: dict) -> list[Row]:
    """Return the paper's numbers on the same pairs, and the run's distance to them."""
    published = comparable(report.get("recipe"), report.get("changed"))
    rows, pairs = [], same_pairs(report["results"]) if published else set()
    for row in published:
        scores = {task: score for task, score in row.scores.items() if task in pairs}
        seeds = {entry["task"]: entry for entry in report.get("summary", []) if entry["task"] in scores}
        distances = {task: distance(seeds[task]["mean"], seeds[task]["sd"], scores[task]) for task in seeds}
        if scores:
            note = f" ({row.note})" if row.note else ""
            rows.append((f"{name}, published{note}", {task: row.shown(task) for task in scores}))
        if distances:
            rows.append((f"{name}, distance in sd", {task: f"{far:+.1f}" for task, far in distances.items()}))
    return rows


def column(result: dict) -> str:
    """Return the heading of a result's column: its task, and its metric unless that is Spearman or accuracy.

    Another protocol than SentEval's default is another column, because the papers' numbers are in that of the default.

    Example:
        >>> column({"task": "GLUE MRPC", "metric": "f1"})
        'GLUE MRPC f1'
        >>> column({"task": "STS12", "metric": "spearman", "suite": "pairs"})  # a user's file of that name
        'STS12 (pairs)'
        >>> column({"task": "MR", "metric": "accuracy", "protocol": "SentEval fast"})
        'MR (fast)'
    """
    public = result["task"] in (*STS_TASKS, *TRANSFER_TASKS)
    task = f"{result['task']} (pairs)" if public and result.get("suite") == "pairs" else result["task"]
    if (protocol := result.get("protocol")) not in (None, DEFAULT):
        task += f" ({protocol.removeprefix('SentEval ')})"
    return task if result["metric"] in ("spearman", "accuracy") else f"{task} {result['metric']}"


def over_seeds(results: Sequence[dict]) -> dict[str, list[float]]:
    """Return the values of each column, one per seed.

    A file may contain a task under several receipts, and SICK-R is in more than one suite. The newest result counts,
    with all its seeds.

    Example:
        >>> receipt = {"task": "GLUE RTE", "metric": "accuracy"}
        >>> over_seeds([{**receipt, "seed": 1, "value": 66.0}, {**receipt, "seed": 2, "value": 67.0}])
        {'GLUE RTE': [66.0, 67.0]}
    """
    kept = newest(results)
    return {
        name: [result["value"] for result in kept if column(result) == name]
        for name in dict.fromkeys(map(column, results))
    }


def newest(results: Sequence[dict]) -> list[dict]:
    """Return the results of the newest receipt of each column, with all its seeds."""
    last = {column(result): _without_seed(result) for result in results}
    return [result for result in results if _without_seed(result) == last[column(result)]]


def _without_seed(result: dict) -> dict:
    of_seed = ("seed", "value", "model_revision", "model_sha256")  # each seed of a run has weights of its own
    return {name: value for name, value in result.items() if name not in of_seed}


def format_rows(rows: list[Row], kind: str = "markdown") -> str:
    """Return a table with a row per model and a column per task; a cell is empty if a model lacks the task.

    Example:
        >>> print(format_rows([("a", {"STS12": "70.00"}), ("b", {"STS12": "71.00 ± 0.10"})]))
        | model | STS12 |
        |---|---|
        | a | 70.00 |
        | b | 71.00 ± 0.10 |
    """
    columns = list(dict.fromkeys(column for _, cells in rows for column in cells))
    columns.sort(key=lambda column: column == AVERAGE)  # the average is the last column
    table = [["model", *columns], *([name, *(cells.get(column, "") for column in columns)] for name, cells in rows)]
    return FORMATS[kind](*table).rstrip("\n")


def distance(mean: float, deviation: float, published: float) -> float:
    """Return how many standard deviations a mean is from a published number; infinite if the deviation is zero.

    Example:
        >>> distance(76.0, 0.5, 76.25)
        -0.5
    """
    difference = mean - published
    return difference / deviation if deviation else difference * math.inf
