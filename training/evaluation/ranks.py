"""The ranks of the cosines of pairs, in a small file. A Spearman correlation needs nothing else of a model."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..files import replace_file
from .tasks.sts import PairTask, Vectors

RANKS = "ranks.npz"  # the file's name beside the results of a run


def save_ranks(file: Path, tasks: Sequence[PairTask], vectors: Vectors, model_sha256: str) -> list[np.ndarray]:
    """Write the ranks of the cosines of each task, from 0; equal cosines have equal ranks.

    Returns:
        The ranks of each task, `(pairs,)` in the smallest type of integers.
    """
    found = []
    for task in tasks:
        ranked = np.unique(task.similarities(vectors), return_inverse=True)[1]
        found.append(ranked.astype(np.min_scalar_type(ranked.max())))
    content = io.BytesIO()
    arrays = {_key(task): ranked for task, ranked in zip(tasks, found, strict=True)}
    np.savez_compressed(content, allow_pickle=False, model_sha256=np.array(model_sha256), **arrays)
    replace_file(file, content.getvalue())
    return found


def load_ranks(file: Path, tasks: Sequence[PairTask], model_sha256: str | None) -> list[np.ndarray] | None:
    """Return the ranks of each task; `None` if the file has not all of these pairs, or is of other weights."""
    if not file.is_file():
        return None
    keys = [_key(task) for task in tasks]
    with np.load(file) as kept:
        if kept["model_sha256"] != model_sha256 or not all(key in kept for key in keys):
            return None
        return [kept[key] for key in keys]


def _key(task: PairTask) -> str:
    return f"{task.name} {task.receipt()['sha256']}"
