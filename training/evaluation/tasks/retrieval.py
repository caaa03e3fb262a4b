"""Retrieval on STS-B test (DiffCSE, section 6): find the other sentence of a pair among all sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import UserError
from ..metrics.recall.recall import Recall
from .sts import OnPairs, Vectors, unit_vectors


@dataclass
class RetrievalTask(OnPairs):
    """Recall of the other sentence of a pair, for the pairs that mean the same.

    Each sentence of such a pair is a query. The corpus is all sentences of all pairs, duplicates included, except the
    query itself. The rank of the wanted sentence is one plus the number of sentences with a higher cosine. Copies of
    it do not count, and other sentences with the same cosine come in random order. Both directions of a pair count.
    (The paper's three numbers are multiples of 1 / 194, so it also used both directions of its 97 pairs.)
    """

    equal: float = 5.0

    measured = "retrieval"

    def __post_init__(self) -> None:
        count = len(self.pairs.pairs)
        if count < 6 or self.equal not in self.pairs.scores:
            raise UserError(
                f"{self.name} needs at least 6 pairs, for recall@10, and one with the score {self.equal:g}; there are "
                f"{count}: give the complete data set"
            )

    def results(self, vectors: Vectors) -> list[dict]:
        """Return recall@1, 5 and 10 (× 100)."""
        corpus = [sentence for pair in self.pairs.pairs for sentence in pair]  # rows 2i and 2i + 1 are pair i
        rows = unit_vectors(vectors(corpus))
        if not np.ptp(rows, axis=0).any():
            raise UserError(f"{self.name}: the encoder returns one vector for every sentence")
        equal = np.flatnonzero(np.array(self.pairs.scores) == self.equal)
        query = np.concatenate([2 * equal, 2 * equal + 1])
        wanted = np.concatenate([2 * equal + 1, 2 * equal])
        similarity = rows[query] @ rows.T
        texts = np.array(corpus, dtype=object)
        similarity[(texts[wanted, None] == texts) & (wanted[:, None] != np.arange(len(texts)))] = -np.inf
        similarity[np.arange(len(query)), query] = -np.inf
        values = Recall(keep_in_memory=True).compute(predictions=similarity, references=wanted)
        sizes = {"queries": len(query), "corpus": len(corpus)}
        return [{"task": self.name, "metric": name, "value": value, **sizes} for name, value in values.items()]


@dataclass
class NeighboursTask(OnPairs):
    """The three nearest neighbours of a query."""

    query: str

    measured = "neighbours"

    def sentences(self) -> set[str]:
        return self.pairs.sentences() | {self.query}

    def results(self, vectors: Vectors) -> list[dict]:
        """Return one result, whose value is a list of sentences with their cosines, nearest first."""
        others = sorted(self.pairs.sentences() - {self.query})
        cosine = unit_vectors(vectors(others)) @ unit_vectors(vectors([self.query]))[0]
        nearest = [{"sentence": others[i], "cosine": float(cosine[i])} for i in np.argsort(-cosine)[:3]]
        return [{"task": self.name, "metric": "neighbours", "value": nearest}]

    def receipt(self) -> dict[str, object]:
        return {**self.pairs.receipt(), "query": self.query}
