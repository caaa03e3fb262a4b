"""Recall@k: how often a search finds the wanted candidate among the first k."""

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Recall@k, times 100, of searches for one candidate each. The rank of a candidate is one plus the number of candidates
that are more similar to the query. Equally similar candidates come in random order: the value is the expected one.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions: for each query, its similarities with all candidates; -inf excludes a candidate.
    references: for each query, the index of the wanted candidate.
    ranks: the values of k; 1, 5 and 10 by default.

Returns:
    recall@k: for each k, the percentage of queries whose wanted candidate has rank k or better.

Example:
    >>> import evaluate
    >>> metric = evaluate.load("training/evaluation/metrics/recall")
    >>> metric.compute(predictions=[[0.1, 0.9, 0.3], [0.8, 0.1, 0.3]], references=[1, 2], ranks=(1, 2))
    {'recall@1': 50.0, 'recall@2': 100.0}
"""


class Recall(evaluate.Metric):
    """Recall@k as a module of `evaluate`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {"predictions": datasets.List(datasets.Value("float64")), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions: list, references: list, ranks: tuple[int, ...] = (1, 5, 10)) -> dict[str, float]:
        similarities = np.round(np.array(predictions), 12)  # equal cosines may differ by rounding
        wanted = np.take_along_axis(similarities, np.array(references)[:, None], axis=1)
        higher, equal = (similarities > wanted).sum(1), (similarities == wanted).sum(1)
        return {f"recall@{k}": 100 * float(np.clip((k - higher) / equal, 0, 1).mean()) for k in ranks}
