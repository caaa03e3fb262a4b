"""Is one encoder better than another? A paired bootstrap over the pairs of each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from tqdm.auto import tqdm

from ..errors import UserError
from ..tables import text_table
from .sentence_vectors import Encode
from .suites import Task, encode_once
from .tasks.search import SearchTask
from .tasks.sts import PairTask

# Of two equal models, one would be called better in 8 % of comparisons of 20 queries, and in 14 % of those of 10.
FEWEST = 20
# Of two equal models, one would be called better in 10 % of comparisons on 96 pairs of which 10 have grade 1 and the
# others 0, in 18 % if 3 have it, and in 80 % if one has it.
FEWEST_OTHERS = 10


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
    """The pairs of a task with the cosines of one or more models of each of two encoders."""

    gold: np.ndarray  # `(n,)` gold scores
    # first, second: `(n,)` cosines, or `(s, n)` for `s` seeds
    first: np.ndarray
    second: np.ndarray
    metric: str = "spearman"  # `spearman` or `pearson`

    def __len__(self) -> int:
        return len(self.gold)

    def difference(self, draws: np.ndarray) -> np.ndarray:
        """Return the first correlation minus the second, × 100, on each draw of pairs `(r, n)`.

        With several seeds, a correlation is the mean over them.
        """
        correlation = CORRELATIONS[self.metric]
        first, second = (
            np.mean([correlation(row[draws], self.gold[draws]) for row in np.atleast_2d(cosines)], axis=0)
            for cosines in (self.first, self.second)
        )
        return first - second


@dataclass(frozen=True)
class Scores:
    """The scores of two encoders on the same items, such as the reciprocal ranks of queries: means are compared."""

    # first, second: `(n,)`, × 100
    first: np.ndarray
    second: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def difference(self, draws: np.ndarray) -> np.ndarray:
        """Return the first mean minus the second on each draw of items `(r, n)`."""
        return (self.first - self.second)[draws].mean(1)


def paired_bootstrap(tasks: Sequence[Similarities | Scores], *, resamples: int = 1000) -> dict[str, float]:
    """Estimate how certain the difference of two encoders' average scores on the same pairs is.

    The pairs, or the queries, of each task are resampled with replacement, and both encoders are scored on each
    resample. A resample of few pairs may have equal scores only, which have no correlation; it is left out.

    Args:
        tasks: over which the scores are averaged.

    Returns:
        `difference`, the first average minus the second, × 100; `low` and `high`, the middle 95 % of it over the
        resamples; and `p`, twice the share of resamples on the other side of zero (at least 1 / resamples).

    Raises:
        UserError: no resample has a correlation.

    References:
        Berg-Kirkpatrick, Burkett, Klein 2012, "An Empirical Investigation of Statistical Significance in NLP".

    Example:
        >>> gold = np.arange(50.0)
        >>> paired_bootstrap([Similarities(gold, gold, -gold)], resamples=100)["difference"]
        200.0
    """
    generator, drawn = np.random.default_rng(0), np.zeros(resamples)
    for task in tasks:
        pairs = len(task)
        for start in range(0, resamples, 100):  # a hundred at a time
            draws = generator.integers(pairs, size=(min(100, resamples - start), pairs))
            with np.errstate(invalid="ignore"):
                drawn[start : start + 100] += task.difference(draws)
    differences = drawn[~np.isnan(drawn)] / len(tasks)
    if not len(differences):
        raise UserError("resamples: every one has equal scores only; give more pairs, or more resamples")
    exact = np.mean([task.difference(np.arange(len(task))[None])[0] for task in tasks])
    low, high = np.percentile(differences, (2.5, 97.5))
    p = 2 * min((differences <= 0).mean(), (differences >= 0).mean())
    return {
        "difference": round(float(exact), 10),
        "low": float(low),
        "high": float(high),
        "p": float(min(1.0, max(p, 1 / len(differences)))),
    }


def compare(
    old: Encode, new: Encode, tasks: Sequence[Task | SearchTask], *, resamples: int = 1000, progress: bool = False
) -> list[dict]:
    """Compare two encoders by the paired bootstrap on each task, and on the average of several tasks.

    Args:
        tasks: pairs with gold scores, such as the tasks of the suite `sts`, or searches.

    Returns:
        For each task its name as `task`, the number of its pairs or queries as `items`, those with another grade than
        the commonest one as `others` (of a search, all), the scores of `old` and `new`, and the figures of
        `paired_bootstrap`: `difference` is new minus old. The average leaves out a task whose pairs are all in another
        one, such as the short pairs of SICK-R. Its `others` are those of the task that has the fewest.
    """
    comparable = [task for task in tasks if isinstance(task, PairTask | SearchTask)]
    if len(comparable) < len(tasks):
        raise UserError("suite: encoders are compared on pairs with gold scores only; choose a suite such as sts")
    pairs = [task for task in comparable if isinstance(task, PairTask)]
    before, after = (encode_once(encode, pairs) for encode in (old, new))
    rows, averaged, drawn = [], [], []
    bar = tqdm(comparable, desc="Resampling", disable=not progress)
    for task, counts in zip(bar, _counting(comparable), strict=True):
        scores: Similarities | Scores
        if isinstance(task, SearchTask):
            scores = Scores(task.scores(new), task.scores(old))
            means = [float(values.mean()) for values in (scores.second, scores.first)]
            others = len(scores)
        else:
            cosines = task.similarities(after), task.similarities(before)
            scores = Similarities(np.array(task.scores), *cosines, task.metric)
            means = [task.correlation(values) for values in reversed(cosines)]
            others = len(scores) - max(Counter(task.scores).values())
        figures = paired_bootstrap([scores], resamples=resamples)
        row = {"task": task.name, "items": len(scores), "others": others, "old": means[0], "new": means[1], **figures}
        rows.append(row)
        if counts:
            averaged.append(row)
            drawn.append(scores)
    if len(rows) > 1:
        average = {name: float(np.mean([row[name] for row in averaged])) for name in ("old", "new")}
        figures = paired_bootstrap(drawn, resamples=resamples)
        large = [row for row in averaged if row["items"] >= FEWEST] or averaged
        others = min(row["others"] for row in large)
        rows.append({"task": "average", "items": sum(map(len, drawn)), "others": others, **average, **figures})
    return rows


def _counting(tasks: Sequence[PairTask | SearchTask]) -> list[bool]:
    """Return which tasks count in the average: not one whose pairs are all in another task, or in an earlier one.

    Pairs with other scores are others.
    """
    pairs = [
        frozenset(zip(task.pairs, task.scores, strict=True)) if isinstance(task, PairTask) else frozenset()
        for task in tasks
    ]
    return [
        not mine or not any(mine < other or (mine == other and j < i) for j, other in enumerate(pairs))
        for i, mine in enumerate(pairs)
    ]


def verdict(row: dict) -> str:
    """Return one sentence that says which encoder is better, from a row of `compare`.

    Example:
        >>> figures = {"difference": 0.53, "low": 0.14, "high": 0.93}
        >>> print(verdict({"items": 500, "others": 400, **figures}))
        The new model is better: +0.53, and the 95 % interval, +0.14 to +0.93, has no zero in it (500 judged).
        >>> print(verdict({"items": 50, "others": 40, "difference": 0.53, "low": -0.4, "high": 1.5}))
        Neither model is clearly better: +0.53, and the 95 % interval, -0.40 to +1.50, has zero in it (50 judged).
        >>> print(verdict({"items": 9, "others": 7, **figures}))
        9 judged are too few to tell which model is better (+0.53); give 20 or more.
        >>> print(verdict({"items": 500, "others": 3, **figures}))
        Pairs with another grade than most: 3. They are too few to tell which model is better (+0.53); give 10 or more.
    """
    few = "are too few to tell which model is better"
    if row["items"] < FEWEST:
        return f"{row['items']} judged {few} ({row['difference']:+.2f}); give {FEWEST} or more."
    if row["others"] < FEWEST_OTHERS:
        others = f"Pairs with another grade than most: {row['others']}. They"
        return f"{others} {few} ({row['difference']:+.2f}); give {FEWEST_OTHERS} or more."
    better, zero = "Neither model is clearly", "has zero in it"
    if not row["low"] <= 0 <= row["high"]:
        better, zero = f"The {'new' if row['low'] > 0 else 'old'} model is", "has no zero in it"
    interval = f"{row['low']:+.2f} to {row['high']:+.2f}"
    return (
        f"{better} better: {row['difference']:+.2f}, and the 95 % interval, {interval}, {zero} "
        f"({row['items']} judged)."
    )


def format_comparison(rows: Sequence[dict]) -> str:
    """Format the rows of `compare` as a table with a header, and what they say in one sentence.

    Example:
        >>> row = {"task": "pairs", "items": 90, "others": 70, "old": 86.61, "new": 87.14}
        >>> print(format_comparison([{**row, "difference": 0.53, "low": 0.14, "high": 0.93, "p": 0.008}]))
        task     old    new  new - old   95 % interval      p
        pairs  86.61  87.14      +0.53  +0.14 to +0.93  0.008
        The new model is better: +0.53, and the 95 % interval, +0.14 to +0.93, has no zero in it (90 judged).
    """
    table = [["task", "old", "new", "new - old", "95 % interval", "p"]]
    for row in rows:
        scores = [f"{row['old']:.2f}", f"{row['new']:.2f}", f"{row['difference']:+.2f}"]
        table.append([row["task"], *scores, f"{row['low']:+.2f} to {row['high']:+.2f}", f"{row['p']:.3f}"])
    return f"{text_table(table)}\n{verdict(rows[-1])}"
