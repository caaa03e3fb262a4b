"""Pictures of an encoder on STS-B: how its similarities spread, and where pairs of sentences lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .errors import UserError
from .evaluation import Encode, encode_once
from .pictures import draw_pairs, draw_similarities
from .sts import DEV_TASK, PairTask, load_task, unit_vectors


def similarities_picture(encode: Encode, data: str, path: str | Path) -> None:
    """The cosines of STS-B test's pairs at each gold score."""
    task = load_task("STSBenchmark", data)
    draw_similarities(task.similarities(encode_once(encode, [task])), np.array(task.scores), path)


def pairs_picture(encode: Encode, data: str, path: str | Path, *, each: int = 20) -> None:
    """Pairs of STS-B dev that mean the same (score 5) and unrelated ones (score 0), the first so many of each."""
    task = load_task(DEV_TASK, data)
    chosen = [[pair for pair, score in zip(task.pairs, task.scores, strict=True) if score == gold] for gold in (5, 0)]
    if not all(chosen):
        raise UserError(f"{DEV_TASK} has no pairs of score 5 or 0 to draw")
    pairs = [pair for kind in chosen for pair in kind[:each]]
    alike = np.array([True] * len(chosen[0][:each]) + [False] * len(chosen[1][:each]))
    vectors = encode_once(encode, [PairTask("pairs", pairs, [0.0] * len(pairs), task.source)])
    both = np.stack([unit_vectors(vectors([pair[side] for pair in pairs])) for side in (0, 1)], axis=1)
    draw_pairs(both, alike, path)


PORTRAITS = {"similarities": similarities_picture, "pairs": pairs_picture}
