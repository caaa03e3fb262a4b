"""Retrieval on STS-B test (DiffCSE, section 6): find the other half of a pair among all sentences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .sts import PairTask, Vectors, load_task, unit_vectors

RANKS = (1, 5, 10)


@dataclass
class RetrievalTask:
    """Every sentence of the pairs that mean the same looks for its other half.

    The corpus is all sentences of all pairs, duplicates included, without the query's own place; rank is one plus the
    number of places that are closer by cosine. The recall is over both directions of each pair (the paper's three
    figures are multiples of 1 / 194, so it did the same with its 97 pairs).

    Args:
        pairs: with gold scores.
        equal: the gold score of pairs that mean the same.
        queries: sentences of one's own, for their nearest neighbours.
    """

    pairs: PairTask
    equal: float = 5.0
    queries: list[str] = field(default_factory=list)

    def sentences(self) -> set[str]:
        return self.pairs.sentences() | set(self.queries)

    def results(self, vectors: Vectors) -> list[dict]:
        """Recall@1, 5 and 10 (× 100), and the three nearest sentences of each query."""
        corpus = [sentence for pair in self.pairs.pairs for sentence in pair]  # places 2i and 2i + 1 are pair i
        places = unit_vectors(vectors(corpus))
        equal = np.flatnonzero(np.array(self.pairs.scores) == self.equal)
        query = np.concatenate([2 * equal, 2 * equal + 1])
        wanted = np.concatenate([2 * equal + 1, 2 * equal])
        similarity = places[query] @ places.T
        similarity[np.arange(len(query)), query] = -np.inf
        rank = (similarity > similarity[np.arange(len(query)), wanted][:, None]).sum(1) + 1
        about = {"task": f"{self.pairs.name} retrieval", "queries": len(query), "corpus": len(corpus)}
        found = [{**about, "metric": f"recall@{k}", "value": 100 * float((rank <= k).mean())} for k in RANKS]
        return found + [self._neighbours(text, vectors, sorted(set(corpus)), about) for text in self.queries]

    def _neighbours(self, query: str, vectors: Vectors, sentences: list[str], about: dict) -> dict:
        """The nearest sentences, each once, the query itself left out."""
        others = [sentence for sentence in sentences if sentence != query]
        cosine = unit_vectors(vectors(others)) @ unit_vectors(vectors([query]))[0]
        nearest = [{"sentence": others[i], "cosine": float(cosine[i])} for i in np.argsort(-cosine)[:3]]
        return {**about, "metric": "neighbours", "query": query, "value": nearest}

    def receipt(self) -> dict[str, object]:
        return self.pairs.receipt()


def load_retrieval(data: str) -> list[RetrievalTask]:
    """The retrieval task on STS-B test."""
    return [RetrievalTask(load_task("STSBenchmark", data))]
