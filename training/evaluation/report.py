"""Results as text: averages and tables."""

from __future__ import annotations

import numpy as np

from .tasks.sts import DEV_TASK

AVERAGE = "average of the tests"


def tests_only(results: list[dict]) -> list[dict]:
    """Results on test pairs: dev pairs choose models and take no part in an average."""
    return [result for result in results if result["task"] not in (DEV_TASK, "dev")]


def average(results: list[dict]) -> float:
    """Unweighted mean over the tests, the papers' "Avg."; of dev alone where there are no tests."""
    return float(np.mean([result["value"] for result in tests_only(results) or results]))


def format_table(rows: list[tuple[str, list[dict]]]) -> str:
    """The usual table: a line per model, a column per task, the average of several last; two decimals.

    Example:
        >>> print(format_table([("ours", [{"task": "STS12", "value": 72.366}, {"task": "STS13", "value": 80.0}])]))
        model  STS12  STS13   Avg.
        ours   72.37  80.00  76.18
    """
    header = ["model", *(result["task"] for result in rows[0][1]), "Avg."]
    lines = [[name, *(f"{r['value']:.2f}" for r in results), f"{average(results):.2f}"] for name, results in rows]
    if len(header) == 3:  # the average of one task is that task
        header, lines = header[:-1], [line[:-1] for line in lines]
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in [header, *lines]
    )


def format_report(model: str, results: list[dict]) -> str:
    """What `evaluate` prints: a table for each suite of scores, a line for each other measure, neighbours of queries.

    Args:
        model: how to call it.
        results: of `evaluate`, with their `suite`.
    """
    blocks = []
    for suite in dict.fromkeys(result["suite"] for result in results):
        own = [result for result in results if result["suite"] == suite]
        if suite not in ("geometry", "retrieval", "cost"):
            blocks.append(format_table([(model, own)]))
            continue
        for result in own:
            if result["metric"] == "neighbours":
                nearest = [f"    {found['cosine']:.2f}  {found['sentence']}" for found in result["value"]]
                blocks.append("\n".join([f"  {result['query']}", *nearest]))
            else:
                blocks.append(f"{result['task']}  {result['metric']}  {result['value']:.3f}")
    return "\n".join(blocks)
