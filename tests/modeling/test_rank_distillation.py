"""Rank distillation and ranking consistency against their definitions in numpy."""

import numpy as np
import pytest
import torch

from csezoo.modeling.contrastive.rank_distillation import rank_consistency, rank_distillation
from tests.tiny import batch, training_model


def cosines(left, right):
    left, right = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (left, right))
    return left @ right.T


@pytest.fixture
def vectors():
    torch.manual_seed(0)
    return [torch.randn(5, size, dtype=torch.float64) for size in (4, 4, 6)]


@pytest.mark.parametrize("loss", ["listnet", "listmle"])
def test_each_sentence_ranks_the_others_as_its_teacher_does(vectors, loss):
    anchors, others, teachers = vectors
    student = cosines(anchors.numpy(), others.numpy()) / 0.1
    teacher = cosines(teachers.numpy(), teachers.numpy()) / 0.2
    losses = []
    for i in range(5):
        rest = [j for j in range(5) if j != i]
        s, t = student[i, rest], teacher[i, rest]
        if loss == "listnet":
            target = np.exp(t) / np.exp(t).sum()
            losses.append(-(target * np.log(np.exp(s) / np.exp(s).sum())).sum())
        else:
            ranked = s[np.argsort(-t)]
            losses.append(-sum(np.log(np.exp(ranked[k]) / np.exp(ranked[k:]).sum()) for k in range(4)))
    value = rank_distillation(*vectors, loss=loss, temperature=0.1, teacher_temperature=0.2)
    assert value.item() == pytest.approx(np.mean(losses), abs=1e-12)


def test_one_sentence_has_nothing_to_rank(vectors):
    one = [tensor[:1].requires_grad_() for tensor in vectors]
    loss = rank_distillation(*one, loss="listmle", temperature=0.1, teacher_temperature=0.1)
    loss.backward()
    assert loss.item() == 0 and not one[0].grad.any()


@pytest.mark.parametrize("name", ["simcse", "prdsimcse", "sgopt", "isbert"])
def test_the_loss_is_added_to_that_of_every_method(name):
    """With dropout off. Where the other views are a twin's or features, the anchors are compared with themselves."""
    model = training_model(name, rank_weight=2.0, rank_temperature=0.1)
    rows = batch(views={"prdsimcse": 3, "sgopt": 1, "isbert": 1}.get(name, 2))
    rows["teacher_vectors"] = torch.randn(4, 3, dtype=torch.float64)
    output = model(**rows)
    others = output.embeddings[:, 0 if name in ("sgopt", "isbert") else 1]
    options = {"loss": "listnet", "temperature": 0.1, "teacher_temperature": 0.05}
    expected = rank_distillation(output.embeddings[:, 0], others, rows["teacher_vectors"], **options)
    torch.testing.assert_close(output.losses["rank"], expected)
    regularizer = 0.1 * output.losses["regularizer"] if name == "sgopt" else 0
    torch.testing.assert_close(output.loss, output.losses["contrastive"] + 2.0 * expected + regularizer)


def test_without_teacher_vectors_the_error_names_the_way_out():
    with pytest.raises(ValueError, match="rank_weight: .* give --teachers DIR, written by `csezoo encode`"):
        training_model("simcse", rank_weight=1.0)(**batch())


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum()


def test_the_rankings_of_two_views_are_compared_by_their_jensen_shannon_divergence(vectors):
    """RankCSE, section 4.2: the sentence itself is in both rankings."""
    anchors, others, _ = vectors
    scores = cosines(anchors.numpy(), others.numpy()) / 0.1
    divergences = []
    for i in range(5):
        p, q = softmax(scores[i]), softmax(scores[:, i])
        mean = (p + q) / 2
        divergences.append(((p * np.log(p / mean)).sum() + (q * np.log(q / mean)).sum()) / 2)
    value = rank_consistency(anchors, others, temperature=0.1)
    assert value.item() == pytest.approx(np.mean(divergences), rel=1e-12)
    assert rank_consistency(others, anchors, temperature=0.1).item() == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("name", ["simcse", "prdsimcse"])
def test_consistency_is_added_with_its_weight_and_the_temperature_of_the_contrast(name):
    model = training_model(name, rank_consistency_weight=2.0, temperature=0.1)
    rows = batch(views=3 if name == "prdsimcse" else 2)
    torch.manual_seed(0)
    output = model(**rows)
    first, second = output.embeddings[:, :2].unbind(1)
    torch.testing.assert_close(output.losses["rank_consistency"], rank_consistency(first, second, temperature=0.1))
    model.config.rank_consistency_weight = 0.0
    torch.manual_seed(0)
    torch.testing.assert_close(output.loss, model(**rows).loss + 2.0 * output.losses["rank_consistency"])


@pytest.mark.parametrize("name", ["sgopt", "isbert"])
def test_one_view_has_no_consistency(name):
    with pytest.raises(ValueError, match=f"rank_consistency_weight: {name} encodes one view .*; set .*: 0"):
        training_model(name, rank_consistency_weight=1.0)
