"""The metrics are modules of `evaluate` that need neither csezoo nor the network; they match plain formulas."""

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from csezoo.modeling import objectives
from csezoo.training.evaluation import metrics
from csezoo.training.evaluation.metrics.alignment.alignment import Alignment
from csezoo.training.evaluation.metrics.recall.recall import Recall
from csezoo.training.evaluation.metrics.sts.sts import STS
from csezoo.training.evaluation.metrics.uniformity.uniformity import Uniformity
from tests.clean_interpreter import run_without_csezoo

GENERATOR = np.random.default_rng(0)
FIRST, SECOND = GENERATOR.normal(size=(2, 12, 5))
CASES = {
    "sts": (STS, {"predictions": [0.1, 0.5, 0.5, 0.4, 0.5, -0.2], "references": [0.0, 5.0, 3.0, 3.0, 4.0, 3.0]}),
    "alignment": (Alignment, {"predictions": FIRST.tolist(), "references": SECOND.tolist()}),
    "uniformity": (Uniformity, {"predictions": FIRST.tolist()}),
    "recall": (Recall, {"predictions": (FIRST @ SECOND.T).tolist(), "references": list(range(12))}),
}


def compute(name, **more):
    module, arguments = CASES[name]
    return module(keep_in_memory=True).compute(**{**arguments, **more})


def test_every_metric_loads_without_csezoo(tmp_path):
    (directory,) = metrics.__path__
    cases = {f"{directory}/{name}": arguments for name, (_, arguments) in CASES.items()}
    code = f"""
import evaluate, json
print(json.dumps([evaluate.load(path).compute(**arguments) for path, arguments in {cases}.items()]))
"""
    assert run_without_csezoo(code, tmp_path) == [compute(name) for name in CASES]


def test_sts_returns_both_correlations_times_100():
    predictions, references = CASES["sts"][1].values()
    spearman, pearson = (100 * correlation(predictions, references).statistic for correlation in (spearmanr, pearsonr))
    assert compute("sts") == pytest.approx({"spearman": spearman, "pearson": pearson})


def test_alignment_and_uniformity_equal_the_objectives():
    first, second = torch.from_numpy(FIRST), torch.from_numpy(SECOND)
    assert compute("alignment")["alignment"] == pytest.approx(objectives.alignment(first, second).item(), abs=1e-12)
    assert compute("uniformity")["uniformity"] == pytest.approx(objectives.uniformity(first).item(), abs=1e-12)


def test_a_zero_vector_has_cosine_0_with_every_vector():
    vectors = [[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    measured = Uniformity(keep_in_memory=True).compute(predictions=vectors)
    assert measured["anisotropy"] == 0.0 and np.isfinite(measured["uniformity"])
    assert Alignment(keep_in_memory=True).compute(predictions=vectors[:1], references=vectors[1:2]) == {
        "alignment": 1.0
    }


def test_anisotropy_is_the_mean_cosine_of_all_pairs():
    cosine = torch.nn.functional.cosine_similarity(torch.from_numpy(FIRST)[:, None], torch.from_numpy(FIRST), dim=-1)
    expected = cosine[~torch.eye(12, dtype=bool)].mean().item()
    assert compute("uniformity")["anisotropy"] == pytest.approx(expected, abs=1e-12)


def test_recall_counts_candidates_with_rank_k_or_better():
    ranks = [sum(other > row[i] for other in row) + 1 for i, row in enumerate(FIRST @ SECOND.T)]
    expected = {f"recall@{k}": 100 * np.mean([rank <= k for rank in ranks]) for k in (1, 3)}
    assert compute("recall", ranks=(1, 3)) == pytest.approx(expected)


def test_equally_similar_candidates_share_their_places():
    """Three of 16 bits in common with the query: a short binary vector has many such ties."""
    predictions = [[0.5, 0.5 + 1e-15, 0.5, 0.9, -np.inf]]
    tied = Recall(keep_in_memory=True).compute(predictions=predictions, references=[1], ranks=(1, 2, 3, 4))
    assert tied == pytest.approx({"recall@1": 0.0, "recall@2": 100 / 3, "recall@3": 200 / 3, "recall@4": 100.0})
