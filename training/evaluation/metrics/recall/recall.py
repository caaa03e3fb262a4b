"""How often a search finds what it looks for among the first few."""

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Recall@k of searches that look for one candidate each, times 100. A candidate's rank is one plus the number of those
that are more similar to the query.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions: for each query, its similarities with all candidates; -inf takes a candidate out.
    references: for each query, the place of the candidate it looks for.
    ranks: the values of k, 1, 5 and 10 by default.

Returns:
    recall@k: the share of queries, times 100, whose candidate has rank k or better; one for each k.

Example:
    >>> import evaluate
    >>> metric = evaluate.load("training/metrics/recall")
    >>> metric.compute(predictions=[[0.1, 0.9, 0.3], [0.8, 0.1, 0.3]], references=[1, 2], ranks=(1, 2))
    {'recall@1': 50.0, 'recall@2': 100.0}
"""


class Recall(evaluate.Metric):
    """`evaluate` module of recall@k."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "predictions": datasets.List(datasets.Value("float64")),
                    "references": datasets.Value("int64"),
                }
            ),
        )

    def _compute(self, predictions: list, references: list, ranks: tuple[int, ...] = (1, 5, 10)) -> dict[str, float]:
        similarities = np.array(predictions)
        wanted = np.take_along_axis(similarities, np.array(references)[:, None], axis=1)
        rank = (similarities > wanted).sum(1) + 1
        return {f"recall@{k}": 100 * float((rank <= k).mean()) for k in ranks}
