"""Uniformity and anisotropy: how evenly vectors are spread over all directions."""

import datasets
import evaluate
import numpy as np
from scipy.spatial.distance import pdist

_DESCRIPTION = """
Uniformity, the log of the mean Gaussian potential over all pairs of vectors on the unit sphere (Wang and Isola 2020,
equation 2, t = 2), and anisotropy, the mean cosine of the same pairs (Ethayarajh 2019). Smaller is better for both.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions: two vectors or more, of any length.

Returns:
    uniformity: from -8 to 0.
    anisotropy: from -1 to 1.

Example:
    >>> import evaluate
    >>> metric = evaluate.load("training/evaluation/metrics/uniformity")
    >>> metric.compute(predictions=[[1.0, 0.0], [-5.0, 0.0]])
    {'uniformity': -8.0, 'anisotropy': -1.0}
"""

_CITATION = """
@inproceedings{wang2020understanding,
    title = {Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere},
    author = {Wang, Tongzhou and Isola, Phillip},
    booktitle = {ICML},
    year = {2020},
}
@inproceedings{ethayarajh-2019-contextual,
    title = "How Contextual are Contextualized Word Representations?",
    author = "Ethayarajh, Kawin",
    booktitle = "Proceedings of EMNLP-IJCNLP",
    year = "2019",
}
"""


class Uniformity(evaluate.Metric):
    """Uniformity and anisotropy as a module of `evaluate`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.List(datasets.Value("float64"))}),
        )

    def _compute(self, predictions: list) -> dict[str, float]:
        vectors = np.array(predictions)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = vectors / np.where(norms == 0, 1, norms)  # a zero vector stays zero
        # The sum of the cosines of all ordered pairs, without those of a vector with itself.
        total = np.square(unit.sum(0)).sum() - np.square(unit).sum()
        return {
            "uniformity": float(np.log(np.exp(-2 * pdist(unit, "sqeuclidean")).mean())),
            "anisotropy": float(total / (len(unit) * (len(unit) - 1))),
        }
