"""Alignment: the mean squared distance between the two vectors of a positive pair."""

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Mean squared distance of positive pairs on the unit sphere (Wang and Isola 2020, equation 1). Smaller is better.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions: one vector of each pair, of any length.
    references: the other vector of each pair.

Returns:
    alignment: from 0 to 4.

Example:
    >>> import evaluate
    >>> metric = evaluate.load("training/evaluation/metrics/alignment")
    >>> metric.compute(predictions=[[2.0, 0.0]], references=[[0.0, 3.0]])["alignment"]
    2.0
"""

_CITATION = """
@inproceedings{wang2020understanding,
    title = {Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere},
    author = {Wang, Tongzhou and Isola, Phillip},
    booktitle = {ICML},
    year = {2020},
}
"""


class Alignment(evaluate.Metric):
    """The alignment of positive pairs as a module of `evaluate`."""

    def _info(self) -> evaluate.MetricInfo:
        vectors = datasets.List(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": vectors, "references": vectors}),
        )

    def _compute(self, predictions: list, references: list) -> dict[str, float]:
        first, second = unit(np.array(predictions)), unit(np.array(references))
        return {"alignment": float(np.square(first - second).sum(1).mean())}


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length one; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)
