"""Tables of results files, for a README, a paper or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np

from .errors import UserError, one_line
from .evaluation import average, tests_only
from .model_card import AVERAGE

FORMATS = ("markdown", "latex", "csv")


def read_row(path: str) -> tuple[str, dict[str, str]]:
    """A results file's model and its cells: mean ± standard deviation over seeds, or the one value.

    Args:
        path: `results.json` of a run, or what `csezoo evaluate --out` wrote.

    Raises:
        UserError: it is no results file.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        name = Path(report["model"]).name
        if "summary" in report:
            cells = {entry["task"]: f"{entry['mean']:.2f} ± {entry['sd']:.2f}" for entry in report["summary"]}
            return name, cells
        scored = [result for result in report["results"] if isinstance(result["value"], float)]
        newest = {_column(result): result for result in scored}  # a file may hold a task under several receipts
        cells = {column: f"{result['value']:.2f}" for column, result in newest.items()}
        correlations = [result for result in newest.values() if result["metric"] == "spearman"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no results file ({one_line(error)})") from error
    if len(tests_only(correlations)) > 1:
        cells[AVERAGE] = f"{average(correlations):.2f}"
    return name, cells


def _column(result: dict) -> str:
    plain = result["metric"] in ("spearman", "accuracy")
    return result["task"] if plain else f"{result['task']} {result['metric']}"


def format_rows(rows: list[tuple[str, dict[str, str]]], kind: str = "markdown") -> str:
    """A line for each model, a column for each task that any of them has.

    Example:
        >>> print(format_rows([("a", {"STS12": "70.00"}), ("b", {"STS12": "71.00 ± 0.10"})]))
        | model | STS12 |
        |---|---|
        | a | 70.00 |
        | b | 71.00 ± 0.10 |
    """
    if kind not in FORMATS:
        raise UserError(f"format: {kind!r} is none of {', '.join(FORMATS)}")
    columns = list(dict.fromkeys(column for _, cells in rows for column in cells))
    columns.sort(key=lambda column: column == AVERAGE)  # last, whoever has it
    table = [["model", *columns], *([name, *(cells.get(column, "") for column in columns)] for name, cells in rows)]
    if kind == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(table)
        return out.getvalue().rstrip("\n")
    if kind == "latex":
        lines = [" & ".join(_escape(cell) for cell in row) + r" \\" for row in table]
        frame = [r"\begin{tabular}{l" + "r" * len(columns) + "}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
        return "\n".join([*frame, r"\bottomrule", r"\end{tabular}"])
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


def _escape(cell: str) -> str:
    for character in "_&%#":
        cell = cell.replace(character, "\\" + character)
    return cell.replace("±", r"$\pm$")


def distance(mean: float, deviation: float, published: float) -> float:
    """How many standard deviations a mean over seeds lies from a published number; infinite where seeds agree exactly.

    Example:
        >>> distance(76.0, 0.5, 76.25)
        -0.5
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide(mean - published, deviation))
