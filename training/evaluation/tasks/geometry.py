"""How a space of embeddings is shaped: alignment, uniformity, anisotropy, on STS-B test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..metrics.alignment.alignment import Alignment
from ..metrics.uniformity.uniformity import Uniformity
from .sts import PairTask, Vectors, load_task


@dataclass
class GeometryTask:
    """Measures of the embeddings themselves; each is smaller where the space is better, and none is times 100.

    `alignment` is over the pairs of a gold score above 4 (as in SimCSE; DiffCSE, which reports it too, does not say
    which pairs it took); `uniformity` over all pairs of the sentences, in each place they stand (Wang, Isola 2020);
    `anisotropy` is the mean cosine of those pairs (Ethayarajh 2019).

    Args:
        pairs: with gold scores.
        positive: pairs above this score count as positive.
    """

    pairs: PairTask
    positive: float = 4.0

    @property
    def name(self) -> str:
        return f"{self.pairs.name} geometry"

    def sentences(self) -> set[str]:
        return self.pairs.sentences()

    def results(self, vectors: Vectors) -> list[dict]:
        first, second = (vectors([pair[side] for pair in self.pairs.pairs]) for side in (0, 1))
        positive = np.array(self.pairs.scores) > self.positive
        values = Alignment(keep_in_memory=True).compute(predictions=first[positive], references=second[positive])
        values |= Uniformity(keep_in_memory=True).compute(predictions=np.concatenate([first, second]))
        return [{"task": self.name, "metric": name, "value": value} for name, value in values.items()]

    def receipt(self) -> dict[str, object]:
        return self.pairs.receipt()


def load_geometry(data: str) -> list[GeometryTask]:
    """The measures on STS-B test."""
    return [GeometryTask(load_task("STSBenchmark", data))]
