"""The losses against an independent float64 implementation in numpy."""

from functools import partial

import numpy as np
import pytest
import torch

from csezoo.modeling.objectives import (
    alignment,
    duplicate_rows,
    info_nce,
    parameter_distance,
    prefix_contrastive,
    replaced_token_detection,
    self_guided,
    uniformity,
)
from tests.formulas import numpy_info_nce, numpy_prefix_contrastive, numpy_self_guided, unit

EVEN = torch.arange(7) % 2 == 0
SAME = (EVEN[:, None] & EVEN).fill_diagonal_(False)  # rows 0, 2, 4 and 6 of seven are one sentence
some_the_same = pytest.mark.parametrize("same", [None, SAME], ids=["all different", "some the same"])


@pytest.fixture
def vectors():
    return torch.from_numpy(np.random.default_rng(0).normal(size=(3, 7, 5)))


@some_the_same
def test_the_unsupervised_loss_equals_the_equation(vectors, same):
    a, p, _ = vectors
    expected = numpy_info_nce(a.numpy(), p.numpy(), same=same)
    assert info_nce(a, p, temperature=0.05, duplicates=same).item() == pytest.approx(expected, abs=1e-12)


@some_the_same
@pytest.mark.parametrize("weight", [0.0, 1.5, -2.0])
def test_hard_negative_weight_is_a_log_weight_of_each_anchors_own_negative(vectors, weight, same):
    expected = numpy_info_nce(*vectors.numpy(), 0.1, weight, same)
    loss = info_nce(*vectors, temperature=0.1, hard_negative_weight=weight, duplicates=same)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


@some_the_same
def test_the_gradient_equals_finite_differences(vectors, same):
    options = {"temperature": 0.5, "hard_negative_weight": 0.3, "duplicates": same}
    assert torch.autograd.gradcheck(lambda v: info_nce(*v, **options), vectors.requires_grad_())


OBJECTIVES = {
    "info_nce": info_nce,
    "prefix_contrastive": partial(prefix_contrastive, denominator="all"),
    "self_guided": lambda a, p, n, **options: self_guided(a, p[:, None], **options),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_half_precision_is_compared_in_float32_under_autocast_too(vectors, dtype, name):
    half = vectors.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = OBJECTIVES[name](*half, temperature=0.05)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, OBJECTIVES[name](*half.float(), temperature=0.05))


def test_alignment_and_uniformity_equal_the_equations(vectors):
    x, y, _ = vectors
    u, v = unit(x.numpy()), unit(y.numpy())
    assert alignment(x, y).item() == pytest.approx(float(((u - v) ** 2).sum(1).mean()), abs=1e-12)
    pairs = [np.exp(-2 * ((u[i] - u[j]) ** 2).sum()) for i in range(len(u)) for j in range(i)]
    assert uniformity(x).item() == pytest.approx(float(np.log(np.mean(pairs))), abs=1e-12)


@some_the_same
@pytest.mark.parametrize("negatives", [True, False])
@pytest.mark.parametrize("denominator", ["batch", "own", "all"])
def test_prefix_contrastive_equals_each_reading_of_the_equation(vectors, denominator, negatives, same):
    anchors, positives, copies = vectors[0], vectors[1], vectors[2] if negatives else None
    of_copies = None if copies is None else copies.numpy()
    expected = numpy_prefix_contrastive(anchors.numpy(), positives.numpy(), of_copies, denominator, 0.1, same)
    options = {"temperature": 0.1, "denominator": denominator, "duplicates": same}
    assert prefix_contrastive(anchors, positives, copies, **options).item() == pytest.approx(expected, abs=1e-12)


def test_prefix_contrastive_refuses_another_reading(vectors):
    with pytest.raises(ValueError, match="'some' must be one of batch, own, all"):
        prefix_contrastive(*vectors, temperature=0.1, denominator="some")


@some_the_same
@pytest.mark.parametrize("variant", ["base", "opt1", "opt2", "opt3"])
def test_self_guided_equals_each_variant_of_the_equation(variant, same):
    rng = np.random.default_rng(1)
    c, views, layers = rng.normal(size=(7, 5)), rng.normal(size=(7, 4, 5)), rng.integers(4, size=7)
    tensors = (torch.from_numpy(c).requires_grad_(), torch.from_numpy(views).requires_grad_())
    options = {"variant": variant, "layers": torch.from_numpy(layers), "duplicates": same}
    loss = self_guided(*tensors, temperature=0.2, **options)
    assert loss.item() == pytest.approx(numpy_self_guided(c, views, variant, layers, 0.2, same), abs=1e-12)
    assert torch.autograd.gradcheck(lambda *v: self_guided(*v, temperature=0.5, **options), tensors)


def test_self_guided_needs_layers_if_there_are_several_views():
    c = torch.randn(3, 4)
    with pytest.raises(ValueError, match="uses one of the 2 views of a sentence"):
        self_guided(c, torch.randn(3, 2, 4), temperature=0.1, variant="base")
    with pytest.raises(ValueError, match="'opt4' must be one of"):
        self_guided(c, c[:, None], temperature=0.1, variant="opt4")


@pytest.mark.parametrize("variant", ["base", "opt1", "opt2", "opt3"])
def test_a_single_sentence_has_a_finite_gradient(variant):
    c = torch.randn(1, 4, requires_grad=True)
    self_guided(c, torch.randn(1, 1, 4), temperature=0.01, variant=variant).backward()
    assert torch.isfinite(c.grad).all()


def test_parameter_distance_sums_squares_over_shared_parameters():
    tuned = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(2, 2)}).double()
    fixed = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "c": torch.nn.Linear(5, 5)}).double()
    expected = sum(
        ((p.detach().numpy() - q.detach().numpy()) ** 2).sum()
        for p, q in zip(tuned["a"].parameters(), fixed["a"].parameters(), strict=True)
    )
    distance = parameter_distance(tuned, fixed)
    assert distance.item() == pytest.approx(expected, abs=1e-12)
    distance.backward()
    torch.testing.assert_close(tuned["a"].weight.grad, 2 * (tuned["a"].weight - fixed["a"].weight).detach())
    assert fixed["a"].weight.grad is None
    with pytest.raises(ValueError, match="no parameter of the same name"):
        parameter_distance(tuned["a"], torch.nn.ModuleDict({"c": torch.nn.Linear(5, 5)}))


def test_parameter_distance_of_half_precision_is_summed_in_float32():
    one, other = torch.nn.Linear(300, 300).bfloat16(), torch.nn.Linear(300, 300).bfloat16()
    expected = parameter_distance(one.float(), other.float())
    torch.testing.assert_close(parameter_distance(one.bfloat16(), other.bfloat16()), expected)


def test_replaced_tokens_are_averaged_over_the_real_ones_even_if_there_is_one_or_none():
    logits, labels = torch.randn(1, 3, 2, requires_grad=True), torch.tensor([[1, 0, 1]])
    first = torch.tensor([[1, 0, 0]])
    one = replaced_token_detection(logits, labels, first, reduction="nonpad_mean")
    torch.testing.assert_close(one, replaced_token_detection(logits, labels, first, reduction="sum"))
    none = replaced_token_detection(logits, labels, torch.zeros(1, 3), reduction="nonpad_mean")
    none.backward()
    assert none == 0 and torch.equal(logits.grad, torch.zeros_like(logits))


def test_a_batch_of_one_sentence_has_no_negatives_and_a_finite_gradient():
    z = torch.randn(4, 6, requires_grad=True)
    everyone = ~torch.eye(4, dtype=torch.bool)
    info_nce(z, z + 1, temperature=0.05, duplicates=everyone).backward()
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_rows_are_duplicates_if_an_anchor_or_positive_is_equal():
    a, b, c, d = [1, 2, 0], [1, 2, 3], [4, 0, 0], [5, 6, 7]  # 0 pads: another length is another text
    rows = torch.tensor([[a, b, d], [c, a, d], [d, c, d], [[9, 9, 9], [8, 8, 8], a]])
    expected = [[False, True, False, False], [True, False, True, False], [False, True, False, False], [False] * 4]
    assert duplicate_rows(rows).tolist() == expected
    assert duplicate_rows(rows[:, :1]).tolist() == [[False] * 4] * 4
    assert duplicate_rows(rows[:0]).shape == (0, 0)


def test_rows_are_equal_only_if_every_token_is():
    rows = torch.randint(30_000, (300, 1, 9))
    rows[150:] = rows[:150]
    rows[150:200, 0, 4] += 1
    rows[200:250] = rows[200:250].flip(2)
    expected = (rows[:, None, 0] == rows[None, :, 0]).all(2).fill_diagonal_(False)
    assert torch.equal(duplicate_rows(rows), expected) and expected.sum() == 100
