"""The losses against independent float64 numpy."""

import numpy as np
import pytest
import torch

from csezoo.modeling.objectives import alignment, info_nce, uniformity


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def numpy_info_nce(z1, z2, z3=None, temperature=0.05, weight=0.0):
    """One anchor at a time, straight from the formula."""
    z1, z2 = unit(z1), unit(z2)
    losses = []
    for i, anchor in enumerate(z1):
        logits = [anchor @ other / temperature for other in z2]
        if z3 is not None:
            hard = unit(z3)
            logits += [anchor @ hard[j] / temperature + (weight if i == j else 0) for j in range(len(hard))]
        top = max(logits)
        losses.append(top + np.log(sum(np.exp(logit - top) for logit in logits)) - logits[i])
    return float(np.mean(losses))


@pytest.fixture
def vectors():
    return torch.from_numpy(np.random.default_rng(0).normal(size=(3, 7, 5)))


def test_unsupervised_loss_is_the_formula(vectors):
    a, p, _ = vectors
    expected = numpy_info_nce(a.numpy(), p.numpy())
    assert info_nce(a, p, temperature=0.05).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weight", [0.0, 1.5, -2.0])
def test_hard_negative_weight_is_a_log_weight_on_the_own_negative(vectors, weight):
    a, p, n = vectors
    expected = numpy_info_nce(a.numpy(), p.numpy(), n.numpy(), 0.1, weight)
    loss = info_nce(a, p, n, temperature=0.1, hard_negative_weight=weight)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_gradient_is_the_slope(vectors):
    a, p, n = (v.clone().requires_grad_() for v in vectors)
    assert torch.autograd.gradcheck(lambda *v: info_nce(*v, temperature=0.5, hard_negative_weight=0.3), (a, p, n))


def test_length_of_the_vectors_does_not_matter(vectors):
    a, p, n = vectors
    torch.testing.assert_close(info_nce(a, p, n, temperature=0.05), info_nce(9 * a, 0.1 * p, 2 * n, temperature=0.05))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_in_float32_under_autocast_too(vectors, dtype):
    a, p, _ = vectors.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = info_nce(a, p, temperature=0.05)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, info_nce(a.float(), p.float(), temperature=0.05))


def test_alignment_and_uniformity_are_the_formulae(vectors):
    x, y, _ = vectors
    u, v = unit(x.numpy()), unit(y.numpy())
    assert alignment(x, y).item() == pytest.approx(float(((u - v) ** 2).sum(1).mean()), abs=1e-12)
    pairs = [np.exp(-2 * ((u[i] - u[j]) ** 2).sum()) for i in range(len(u)) for j in range(i)]
    assert uniformity(x).item() == pytest.approx(float(np.log(np.mean(pairs))), abs=1e-12)
