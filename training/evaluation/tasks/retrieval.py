"""Retrieval on STS-B test (DiffCSE, section 6): find the other half of a pair among all sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..metrics.recall.recall import Recall
from .sts import PairTask, Vectors, load_task, unit_vectors


@dataclass
class RetrievalTask:
    """Every sentence of the pairs that mean the same looks for its other half.

    The corpus is all sentences of all pairs, duplicates included, without the query's own place; rank is one plus the
    number of places that are closer by cosine. The recall is over both directions of each pair (the paper's three
    figures are multiples of 1 / 194, so it did the same with its 97 pairs).

    Args:
        pairs: with gold scores.
        equal: the gold score of pairs that mean the same.
    """

    pairs: PairTask
    equal: float = 5.0

    @property
    def name(self) -> str:
        return f"{self.pairs.name} retrieval"

    def sentences(self) -> set[str]:
        return self.pairs.sentences()

    def results(self, vectors: Vectors) -> list[dict]:
        """Recall@1, 5 and 10 (× 100)."""
        corpus = [sentence for pair in self.pairs.pairs for sentence in pair]  # places 2i and 2i + 1 are pair i
        places = unit_vectors(vectors(corpus))
        equal = np.flatnonzero(np.array(self.pairs.scores) == self.equal)
        query = np.concatenate([2 * equal, 2 * equal + 1])
        wanted = np.concatenate([2 * equal + 1, 2 * equal])
        similarity = places[query] @ places.T
        similarity[np.arange(len(query)), query] = -np.inf
        values = Recall(keep_in_memory=True).compute(predictions=similarity, references=wanted)
        about = {"queries": len(query), "corpus": len(corpus)}
        return [{"task": self.name, "metric": name, "value": value, **about} for name, value in values.items()]

    def receipt(self) -> dict[str, object]:
        return self.pairs.receipt()


@dataclass
class NeighboursTask:
    """The three sentences of the pairs that are nearest to a sentence of one's own, itself left out.

    Args:
        pairs: their sentences, each once, are the corpus.
        query: the sentence.
    """

    pairs: PairTask
    query: str

    @property
    def name(self) -> str:
        return f"{self.pairs.name} neighbours"

    def sentences(self) -> set[str]:
        return self.pairs.sentences() | {self.query}

    def results(self, vectors: Vectors) -> list[dict]:
        """One result, whose value lists sentences and cosines, the nearest first."""
        others = sorted(self.pairs.sentences() - {self.query})
        cosine = unit_vectors(vectors(others)) @ unit_vectors(vectors([self.query]))[0]
        nearest = [{"sentence": others[i], "cosine": float(cosine[i])} for i in np.argsort(-cosine)[:3]]
        return [{"task": self.name, "metric": "neighbours", "value": nearest}]

    def receipt(self) -> dict[str, object]:
        return {**self.pairs.receipt(), "query": self.query}


def load_retrieval(data: str) -> list[RetrievalTask]:
    """The retrieval task on STS-B test."""
    return [RetrievalTask(load_task("STSBenchmark", data))]
