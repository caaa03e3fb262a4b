"""Ranks of similarities: exact for a Spearman correlation, and never those of other weights or pairs."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from csezoo.training.evaluation.ranks import load_ranks, save_ranks
from csezoo.training.evaluation.tasks.sts import PairTask

PAIRS = [(f"first {n}", f"second {n % 7}") for n in range(300)]
TASK = PairTask("toy", PAIRS, [float(n % 6) for n in range(300)], "made here")


def vectors(texts: list[str]) -> np.ndarray:
    return np.array([np.random.default_rng(len(text) + ord(text[-1])).normal(size=4) for text in texts])


def test_ranks_are_the_order_of_the_cosines_and_lose_nothing_of_a_correlation(tmp_path):
    (ranked,) = save_ranks(tmp_path / "ranks.npz", [TASK], vectors, "weights")
    similarities = TASK.similarities(vectors)
    assert np.array_equal(np.unique(similarities), [similarities[ranked == n][0] for n in range(ranked.max() + 1)])
    assert spearmanr(ranked, TASK.scores) == spearmanr(similarities, TASK.scores)
    assert ranked.dtype == np.uint8, "as small as the number of different cosines allows"


def test_ranks_are_read_as_they_were_saved(tmp_path):
    other = PairTask("other", PAIRS[:9], TASK.scores[:9], "made here")
    saved = save_ranks(tmp_path / "ranks.npz", [TASK, other], vectors, "weights")
    for tasks, expected in (([TASK, other], saved), ([other], saved[1:])):
        read = load_ranks(tmp_path / "ranks.npz", tasks, "weights")
        assert all(np.array_equal(one, two) for one, two in zip(read, expected, strict=True))


@pytest.mark.parametrize(
    ("task", "weights"),
    [
        (TASK, "other weights"),
        (TASK, None),
        (PairTask("toy", PAIRS[::-1], TASK.scores, "made here"), "weights"),
        (PairTask("other", PAIRS, TASK.scores, "made here"), "weights"),
    ],
    ids=["other weights", "weights that nobody knows", "other pairs", "another task"],
)
def test_ranks_of_something_else_are_not_used(task, weights, tmp_path):
    save_ranks(tmp_path / "ranks.npz", [TASK], vectors, "weights")
    assert load_ranks(tmp_path / "ranks.npz", [task], weights) is None


def test_no_file_has_no_ranks(tmp_path):
    assert load_ranks(tmp_path / "ranks.npz", [TASK], "weights") is None
