"""The nearest sentence of some sentences, before and after training."""

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


def nearest_sentences(task: PairTask, before: Vectors, after: Vectors) -> list[dict]:
    """Return for each of `query_sentences` the nearest other sentence of the task, before and after training.

    Args:
        task: its distinct sentences are the corpus.
        before, after: the vectors of both encoders.

    Returns:
        `query`, and in `before` and `after` the `sentence` and its `cosine`.
    """
    sentences = sorted(task.sentences())
    sides = {name: unit_vectors(vectors(sentences)) for name, vectors in (("before", before), ("after", after))}
    found = []
    for query in query_sentences(task):
        row: dict = {"query": query}
        for name, vectors in sides.items():
            cosines = vectors @ vectors[sentences.index(query)]
            cosines[sentences.index(query)] = -np.inf
            nearest = int(np.argmax(cosines))
            row[name] = {"sentence": sentences[nearest], "cosine": float(cosines[nearest])}
        found.append(row)
    return found
