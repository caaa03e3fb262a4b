"""Comparing the rows of a table with one of them, by a paired bootstrap over the pairs of the STS tasks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..environment import progress_bar
from ..evaluation.encoders import load_encoder
from ..evaluation.significance import Similarities, paired_bootstrap
from ..evaluation.suites import encode_once
from ..evaluation.tasks.sts import PairTask
from ..files import replace_file
from .manifests import Item
from .measuring import is_trained, read_results
from .plan import Planned, Run
from .pooling import Line
from .runs import converted


def compared(item: Item, planned: Sequence[Planned], lines: Sequence[Line], tasks: Sequence[PairTask]) -> list[Line]:
    """Return the lines with the confidence that they differ from the row `against` in the average of the STS tasks.

    All trained seeds of the two rows take part. Their scores are averaged on each resample of the pairs.

    Args:
        item: with `against`. If that row has no trained run, the lines are returned as they are.
        planned: the rows.
        lines: the same rows, pooled.
        tasks: of the suite `sts`.
    """
    columns = [column.name for column in item.columns if column.averages_sts]
    trained = {row.row.label: [run for run in row.runs if is_trained(run)] for row in planned}
    if not trained.get(item.against or ""):
        return list(lines)
    bar = progress_bar(sum(map(len, trained.values())), "comparing")
    ranked = {}
    for label, runs in trained.items():
        each = []
        for run in runs:
            each.append(ranks(run, tasks))
            bar.update()
        ranked[label] = [np.stack(seeds) for seeds in zip(*each, strict=True)]
    bar.close()
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


def ranks(run: Run, tasks: Sequence[PairTask]) -> list[np.ndarray]:
    """Return for each task the ranks of the cosines of its pairs, from 0: a Spearman correlation needs no more.

    They are kept beside the evaluation of the run. If it is of the same weights, they are not computed again, so the
    weights may be deleted.
    """
    file = (run.directory / run.evaluation).with_suffix(".npz")
    pairs = [str(task.receipt()["sha256"]) for task in tasks]
    scored = next((row["model_sha256"] for row in read_results(run) if "model_sha256" in row), None)
    if file.is_file():
        with np.load(file) as kept:
            if kept["receipt"].tolist() == [scored, *pairs]:
                return [kept[task.name] for task in tasks]
    encode, receipt = load_encoder(converted(run), pooling=run.pooling)
    vectors = encode_once(encode, tasks)
    found = {}
    for task in tasks:
        ranked = np.unique(task.similarities(vectors), return_inverse=True)[1]
        found[task.name] = ranked.astype(np.min_scalar_type(ranked.max()))
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, receipt=np.array([receipt["model_sha256"], *pairs]), **found)
    replace_file(file, content.getvalue())
    return list(found.values())
