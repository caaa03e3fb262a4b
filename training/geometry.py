"""How a space of embeddings is shaped: alignment, uniformity, anisotropy, on STS-B test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from csezoo.modeling.objectives import alignment, uniformity

from .sts import PairTask, Vectors, load_task, unit_vectors


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

    def sentences(self) -> set[str]:
        return self.pairs.sentences()

    def results(self, vectors: Vectors) -> list[dict]:
        first, second = (unit_vectors(vectors([pair[side] for pair in self.pairs.pairs])) for side in (0, 1))
        positive = np.array(self.pairs.scores) > self.positive
        every = np.concatenate([first, second])
        # Of all ordered pairs, leave out each vector with itself.
        total = np.square(every.sum(0)).sum() - np.square(every).sum()
        values = {
            "alignment": float(alignment(torch.from_numpy(first[positive]), torch.from_numpy(second[positive]))),
            "uniformity": float(uniformity(torch.from_numpy(every))),
            "anisotropy": float(total / (len(every) * (len(every) - 1))),
        }
        task = f"{self.pairs.name} geometry"
        return [{"task": task, "metric": name, "value": value} for name, value in values.items()]

    def receipt(self) -> dict[str, object]:
        return self.pairs.receipt()


def load_geometry(data: str) -> list[GeometryTask]:
    """The measures on STS-B test."""
    return [GeometryTask(load_task("STSBenchmark", data))]
