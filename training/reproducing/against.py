"""Comparing the rows of a table with one of them, by a paired bootstrap over the pairs of the STS tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..environment import progress_bar
from ..evaluation.significance import Similarities, paired_bootstrap
from ..evaluation.tasks.sts import PairTask
from .manifests import Item
from .measuring import is_trained
from .plan import Planned
from .pooling import Line
from .runs import ranks


def compared(
    item: Item,
    planned: Sequence[Planned],
    lines: Sequence[Line],
    tasks: Sequence[PairTask],
    failed: Collection[Path] = (),
) -> list[Line]:
    """Return the lines with the confidence that they differ from the row `against` in the average of the STS tasks.

    All trained seeds of the two rows take part. Their scores are averaged on each resample of the pairs.

    Args:
        item: with `against`. If that row has no trained run, the lines are returned as they are.
        tasks: of the suite `sts`.
        failed: directories of runs that are left out.
    """
    columns = [column.name for column in item.columns if column.averages_sts]
    trained = {
        row.row.label: [run for run in row.runs if is_trained(run) and run.directory not in failed] for row in planned
    }
    if not trained.get(item.against or ""):
        return list(lines)
    ranked = {}
    with progress_bar(sum(map(len, trained.values())), "comparing") as bar:
        for label, runs in trained.items():
            each = []
            for run in runs:
                each.append(ranks(run, tasks))
                bar.update()
            ranked[label] = [np.stack(seeds) for seeds in zip(*each, strict=True)]
    golds = [np.array(task.scores) for task in tasks]
    result = []
    for line in lines:
        if line.name != item.against and trained.get(line.name):
            sides = zip(golds, ranked[line.name], ranked[str(item.against)], strict=True)
            found = paired_bootstrap([Similarities(*side) for side in sides])
            cells = {
                name: replace(line.cells[name], low=found["low"], high=found["high"], p=found["p"]) for name in columns
            }
            line = replace(line, cells={**line.cells, **cells})
        result.append(line)
    return result
