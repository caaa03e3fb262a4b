"""Format results as text: averages and tables."""

from __future__ import annotations

import statistics

from ..tables import text_table

AVERAGE = "average of the tests"
OF_PARTS = ("sts-length", "trec-length", "edits")  # suites in which one task is a part of another


def tests_only(results: list[dict]) -> list[dict]:
    """Return the results without those on dev: dev chooses models, so it is not part of an average.

    The pairs of `csezoo evaluate --pairs` choose no model, whatever their file's name.
    """
    return [result for result in results if result.get("suite") == "pairs" or not _is_dev(result["task"])]


def dev_only(results: list[dict]) -> list[dict]:
    """Return the results on dev."""
    return [result for result in results if _is_dev(result["task"])]


def _is_dev(task: str) -> bool:
    return task == "dev" or task.endswith("-dev")


def average(results: list[dict]) -> float:
    """Return the unweighted mean over the tests, "Avg." in the papers. Without tests, it is the mean over dev."""
    return statistics.fmean(result["value"] for result in tests_only(results) or results)


def format_table(rows: list[tuple[str, list[dict]]], *, averaged: bool = True) -> str:
    """Format the usual table with two decimals: a line per model, a column per task, and the average of several tasks.

    Args:
        averaged: false for tasks of which one is a part of another.

    Example:
        >>> print(format_table([("ours", [{"task": "STS12", "value": 72.366}, {"task": "STS13", "value": 80.0}])]))
        model  STS12  STS13   Avg.
        ours   72.37  80.00  76.18
        >>> print(format_table([("ours", [{"task": "STS-B", "value": 72.366}])]))
        model  STS-B
        ours   72.37
    """
    header = ["model", *(result["task"] for result in rows[0][1]), "Avg."]
    lines = [[name, *(f"{r['value']:.2f}" for r in results), f"{average(results):.2f}"] for name, results in rows]
    if len(header) == 3 or not averaged:  # one task needs no average
        header, lines = header[:-1], [line[:-1] for line in lines]
    return text_table([header, *lines])


def format_report(model: str, results: list[dict]) -> str:
    """Format what `csezoo evaluate` prints: a table per suite, a line per other measure, a list per query."""
    blocks = []
    for suite in dict.fromkeys(result["suite"] for result in results):
        rows = [result for result in results if result["suite"] == suite]
        if suite not in ("geometry", "retrieval", "cost"):
            blocks.append(format_table([(model, rows)], averaged=suite not in OF_PARTS))
            continue
        for result in rows:
            if result["metric"] == "neighbours":
                nearest = [f"    {near['cosine']:.2f}  {near['sentence']}" for near in result["value"]]
                blocks.append("\n".join([f"  {result['query']}", *nearest]))
            else:
                blocks.append(f"{result['task']}  {result['metric']}  {result['value']:.3f}")
    return "\n".join(blocks)
