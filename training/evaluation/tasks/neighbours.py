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
    equal = [pair for pair, score in zip(task.pairs, task.scores, strict=True) if score == max(task.scores)]
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
        cosines = corpus @ corpus[sentences.index(query)]
        cosines[sentences.index(query)] = -np.inf
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
    known = {row["query"]: row for row in before}
    return [
        {"query": row["query"], **{name: _without_query(side) for name, side in sides.items()}}
        for row in after
        if row["query"] in known
        for sides in ({"before": known[row["query"]], "after": row},)
    ]


def _without_query(row: dict) -> dict:
    return {key: value for key, value in row.items() if key != "query"}
