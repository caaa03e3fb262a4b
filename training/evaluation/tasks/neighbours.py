"""The nearest sentences of some sentences, to compare an encoder before and after training."""

from __future__ import annotations

import numpy as np

from .sts import PairTask, Vectors, unit_vectors

QUERIES, LONGEST = 5, 60  # how many sentences are shown, and the most characters of each


def query_sentences(task: PairTask) -> list[str]:
    """Choose sentences whose neighbours are shown: short ones, evenly from all that have a partner of equal meaning.

    Example:
        >>> query_sentences(PairTask("toy", [("a", "b"), ("c", "d"), ("e", "f")], [5, 0, 5], "example"))
        ['a', 'e']
    """
    best = max(task.scores)
    equal = [pair for pair, score in zip(task.pairs, task.scores, strict=True) if score == best]
    short = sorted({first for first, second in equal if max(len(first), len(second)) <= LONGEST})
    return short[:: -(-len(short) // QUERIES) or 1]


def nearest_sentences(task: PairTask, vectors: Vectors) -> list[dict]:
    """Return for each of `query_sentences` the nearest other sentence of the task, and its cosine.

    Returns:
        `query`, `sentence` and `cosine` of each.
    """
    sentences = sorted(task.sentences())
    corpus = unit_vectors(vectors(sentences))
    found = []
    for query in query_sentences(task):
        row = sentences.index(query)
        cosines = corpus @ corpus[row]
        cosines[row] = -np.inf
        nearest = int(np.argmax(cosines))
        found.append({"query": query, "sentence": sentences[nearest], "cosine": float(cosines[nearest])})
    return found


def side_by_side(before: list[dict], after: list[dict]) -> list[dict]:
    """Join the nearest sentences of the same queries before and after training.

    Example:
        >>> one, other = ({"query": "a", "sentence": text, "cosine": 0.5} for text in "bc")
        >>> side_by_side([one], [other])  # doctest: +NORMALIZE_WHITESPACE
        [{'query': 'a', 'before': {'sentence': 'b', 'cosine': 0.5}, 'after': {'sentence': 'c', 'cosine': 0.5}}]
    """
    first, second = (
        {row["query"]: {key: row[key] for key in ("sentence", "cosine")} for row in rows} for rows in (before, after)
    )
    return [{"query": query, "before": first[query], "after": second[query]} for query in second if query in first]
