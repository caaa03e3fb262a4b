"""Measure the shape of an embedding space on STS-B test: alignment, uniformity, anisotropy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..metrics.alignment.alignment import Alignment
from ..metrics.uniformity.uniformity import Uniformity
from .sts import OnPairs, Vectors


@dataclass
class GeometryTask(OnPairs):
    """Measures of the embeddings themselves. For each, smaller is better; none is multiplied by 100.

    `alignment` is over the pairs with a gold score above 4, as in SimCSE. (DiffCSE reports it too, but does not say
    for which pairs.) `uniformity` is over all pairs of sentences in the data, repeated sentences included (Wang, Isola
    2020). `anisotropy` is the mean cosine of the same pairs (Ethayarajh 2019).
    """

    positive: float = 4.0  # a field, so that it is in the receipt

    measured = "geometry"

    def results(self, vectors: Vectors) -> list[dict]:
        first, second = (vectors([pair[side] for pair in self.pairs.pairs]) for side in (0, 1))
        positive = np.array(self.pairs.scores) > self.positive
        values = Alignment(keep_in_memory=True).compute(predictions=first[positive], references=second[positive])
        values |= Uniformity(keep_in_memory=True).compute(predictions=np.concatenate([first, second]))
        return [{"task": self.name, "metric": name, "value": value} for name, value in values.items()]
