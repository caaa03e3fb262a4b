"""Write the results of a table for docs/stand-in, with each receipt once: of a run, of a task, of all trainings.

python -m tests.stand_in reproduced/diffcse/table-3/results.json docs/stand-in/diffcse-table-3.json
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from csezoo.training.files import read_json, write_json
from csezoo.training.loop.checkpoints import RECEIPT
from csezoo.training.reproducing.columns import RUN

NAME = ("suite", "task", "metric")  # of a task, and of its entry in `tasks`
OWN = (*NAME, "value")  # of each result, even if all have the same


def with_shared_receipts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows of a table, its `tasks`, and the `origin` of all trainings, with nothing said twice.

    A result is complete as `{**task, **run["receipt"], **result}`; the costs of a run (suite `run`) have no receipt.
    What the training of a run depends on is `{**table["origin"], **run["training"]["origin"]}`.

    Args:
        rows: with `runs`, each with its `results`.
    """
    rows = copy.deepcopy(list(rows))
    runs = [run for row in rows for run in row["runs"]]
    origin = _take_shared([run["training"][RECEIPT] for run in runs if "training" in run])
    by_task: dict[tuple[str, ...], list[dict]] = {}
    for run in runs:
        results = run.pop("results")
        run["receipt"] = _take_shared([result for result in results if result["suite"] != RUN])
        run["results"] = results
        for result in results:
            by_task.setdefault(tuple(result[name] for name in NAME), []).append(result)
    tasks = [{**dict(zip(NAME, name, strict=True)), **_take_shared(same)} for name, same in by_task.items()]
    return {RECEIPT: origin, "tasks": [task for task in tasks if task.keys() - set(NAME)], "rows": rows}


def _take_shared(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Take out of results, and return, what all of them have with the same value."""
    first = results[0] if results else {}
    keys = [
        key for key in first if key not in OWN and all(key in each and each[key] == first[key] for each in results)
    ]
    shared = {key: first[key] for key in keys}
    for result in results:
        for key in keys:
            del result[key]
    return shared


if __name__ == "__main__":
    table = read_json(Path(sys.argv[1]))
    write_json(Path(sys.argv[2]), {**table, **with_shared_receipts(table["rows"])})
