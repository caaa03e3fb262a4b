"""Is one encoder better than another? A paired bootstrap over the pairs of each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from tqdm.auto import tqdm

from ..errors import UserError
from .sentence_vectors import Encode
from .suites import Task, encode_once
from .tasks.sts import PairTask


def pearson(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation (× 100) of each row of `first` (r, n) with the same row of `second` (r, n).

    Example:
        >>> pearson(np.array([[1.0, 2.0, 3.0]]), np.array([[2.0, 4.0, 6.0]]))
        array([100.])
    """
    a, b = (values - values.mean(1, keepdims=True) for values in (first, second))
    return 100 * (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


def spearman(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the Spearman correlation (× 100) of each row of `first` (r, n) with the same row of `second` (r, n).

    Example:
        >>> spearman(np.array([[1.0, 2.0, 3.0]]), np.array([[2.0, 4.0, 9.0]]))
        array([100.])
    """
    return pearson(rankdata(first, axis=1), rankdata(second, axis=1))


CORRELATIONS = {"spearman": spearman, "pearson": pearson}


@dataclass(frozen=True)
class Similarities:
    """The pairs of a task with the cosines of one or more models of each of two encoders.

    Args:
        gold: `(n,)` gold scores.
        first, second: `(n,)` cosines, or `(s, n)` for `s` seeds.
        metric: `spearman` or `pearson`.
    """

    gold: np.ndarray
    first: np.ndarray
    second: np.ndarray
    metric: str = "spearman"

    def difference(self, draws: np.ndarray) -> np.ndarray:
        """Return the first correlation minus the second, × 100, on each draw of pairs `(r, n)`.

        With several seeds, a correlation is the mean over them.
        """
        first, second = (self._correlation(cosines, draws) for cosines in (self.first, self.second))
        return first - second

    def _correlation(self, cosines: np.ndarray, draws: np.ndarray) -> np.ndarray:
        correlation = CORRELATIONS[self.metric]
        return np.mean([correlation(row[draws], self.gold[draws]) for row in np.atleast_2d(cosines)], axis=0)


def paired_bootstrap(tasks: Sequence[Similarities], *, resamples: int = 1000, seed: int = 0) -> dict[str, float]:
    """Estimate how certain the difference of two encoders' average scores on the same pairs is.

    The pairs of each task are resampled with replacement, and both encoders are scored on each resample. A resample of
    few pairs may have equal scores only, which have no correlation; it is left out.

    Args:
        tasks: over which the scores are averaged.
        resamples: number of resamples.
        seed: of the resampling.

    Returns:
        `difference`, the first average minus the second, × 100; `low` and `high`, the middle 95 % of it over the
        resamples; and `p`, twice the share of resamples on the other side of zero (at least 1 / resamples).

    References:
        Berg-Kirkpatrick, Burkett, Klein 2012, "An Empirical Investigation of Statistical Significance in NLP".

    Example:
        >>> gold = np.arange(50.0)
        >>> paired_bootstrap([Similarities(gold, gold, -gold)], resamples=100)["difference"]
        200.0
    """
    generator, drawn = np.random.default_rng(seed), np.zeros(resamples)
    for task in tasks:
        pairs = len(task.gold)
        for start in range(0, resamples, 100):  # a hundred at a time
            draws = generator.integers(pairs, size=(min(100, resamples - start), pairs))
            with np.errstate(invalid="ignore"):
                drawn[start : start + 100] += task.difference(draws)
    differences = drawn[~np.isnan(drawn)] / len(tasks)
    exact = np.mean([task.difference(np.arange(len(task.gold))[None])[0] for task in tasks])
    low, high = np.percentile(differences, (2.5, 97.5))
    p = 2 * min((differences <= 0).mean(), (differences >= 0).mean())
    return {
        "difference": round(float(exact), 10),
        "low": float(low),
        "high": float(high),
        "p": float(min(1.0, max(p, 1 / len(differences)))),
    }


def compare(
    first: Encode, second: Encode, tasks: Sequence[Task], *, resamples: int = 1000, progress: bool = False
) -> list[dict]:
    """Compare two encoders by the paired bootstrap on each task.

    Args:
        first, second: texts to vectors.
        tasks: pairs with gold scores, such as the tasks of the suite `sts`.
        resamples: number of resamples per task.
        progress: show a bar.

    Returns:
        For each task its name, both encoders' scores, and the figures of `paired_bootstrap`.

    Raises:
        UserError: a task has no pairs with gold scores, or all similarities of an encoder are equal.
    """
    pair_tasks = [task for task in tasks if isinstance(task, PairTask)]
    if len(pair_tasks) < len(tasks):
        raise UserError("suite: encoders are compared on pairs with gold scores only; choose a suite such as sts")
    tables = [encode_once(encode, pair_tasks) for encode in (first, second)]
    compared = []
    for task in tqdm(pair_tasks, desc="Resampling", disable=not progress):
        gold = np.array(task.scores)
        one, other = (task.similarities(vectors) for vectors in tables)
        scores = [task.correlation(similarities) for similarities in (one, other)]
        figures = paired_bootstrap([Similarities(gold, one, other, task.metric)], resamples=resamples)
        compared.append({"task": task.name, "first": scores[0], "second": scores[1], **figures})
    return compared
