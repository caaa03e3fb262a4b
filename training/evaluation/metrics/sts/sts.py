"""Correlation of predicted similarities with gold scores, as reported for the STS tasks."""

import warnings

import datasets
import evaluate
from scipy.stats import ConstantInputWarning, pearsonr, spearmanr

_DESCRIPTION = """
Spearman and Pearson correlation between predicted similarities and gold scores, times 100. Ties share their mean rank.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions: similarities, one per pair.
    references: gold scores, one per pair.

Returns:
    spearman, pearson: correlations times 100; nan if all predictions are equal.

Example:
    >>> import evaluate
    >>> metric = evaluate.load("training/evaluation/metrics/sts")
    >>> metric.compute(predictions=[0.1, 0.5, 0.4], references=[0, 5, 3])["spearman"]
    100.0
"""

_CITATION = """
@inproceedings{cer-etal-2017-semeval,
    title = "{S}em{E}val-2017 Task 1: Semantic Textual Similarity Multilingual and Crosslingual Focused Evaluation",
    author = "Cer, Daniel and Diab, Mona and Agirre, Eneko and Lopez-Gazpio, I{\\~n}igo and Specia, Lucia",
    booktitle = "Proceedings of SemEval-2017",
    year = "2017",
}
"""


class STS(evaluate.Metric):
    """The STS correlations as a module of `evaluate`."""

    def _info(self) -> evaluate.MetricInfo:
        # float64, because in float32 some different similarities would tie.
        features = {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(features),
        )

    def _compute(self, predictions: list, references: list) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantInputWarning)  # equal predictions give nan
            return {
                "spearman": 100 * float(spearmanr(predictions, references).statistic),
                "pearson": 100 * float(pearsonr(predictions, references).statistic),
            }
