"""Whitening: the paper's algorithm against numpy, and the number of vectors it needs."""

import numpy as np
import pytest
import torch

from csezoo.modeling.contrastive.whitening import Whitening


def vectors(n, hidden_size=5, rank=5):
    """Vectors far from the origin that span `rank` dimensions around their mean."""
    generator = np.random.default_rng(0)
    spread = generator.normal(size=(n, rank)) * np.arange(1, rank + 1) @ generator.normal(size=(rank, hidden_size))
    return torch.from_numpy(spread + 7)


def fitted(fitted_to, size, power=1.0):
    whitening = Whitening(fitted_to.shape[1], size).double()
    whitening.fit(fitted_to, power)
    return whitening


@pytest.mark.parametrize("size", [1, 3, 5])
def test_whitening_keeps_the_largest_directions_with_variance_1(size):
    x = vectors(40)
    variances, directions = np.linalg.eigh(np.cov(x.numpy().T, bias=True))  # of ascending variance
    expected = (x.numpy() - x.numpy().mean(0)) @ (directions / np.sqrt(variances))[:, ::-1][:, :size]
    made = fitted(x, size)(x).numpy()
    np.testing.assert_allclose(abs(made), abs(expected), atol=1e-9)  # the sign of a direction is free


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_power_keeps_a_part_of_the_variances(power):
    x = vectors(40)
    covariance = np.cov(fitted(x, 5, power)(x).numpy().T, bias=True)
    variances = np.linalg.eigvalsh(np.cov(x.numpy().T, bias=True))[::-1]
    np.testing.assert_allclose(covariance, np.diag(variances ** (1 - power)), atol=1e-9)


def test_before_fitting_it_only_drops_dimensions():
    x = vectors(3).float()
    assert torch.equal(Whitening(5, 2)(x), x[:, :2])


def test_it_is_saved_and_not_trained():
    whitening = Whitening(5, 2)
    assert set(whitening.state_dict()) == {"mean", "kernel"}
    assert not any(parameter.requires_grad for parameter in whitening.parameters())
    whitening.fit(vectors(9).float().requires_grad_())
    assert whitening.kernel.grad_fn is None and not whitening.kernel.requires_grad


@pytest.mark.parametrize("size", [1, 2, 3])
def test_fitting_needs_more_vectors_than_dimensions(size):
    made = fitted(vectors(size + 1), size)(vectors(size + 1))
    np.testing.assert_allclose(np.cov(made.numpy().T, bias=True), np.eye(size), atol=1e-9)
    with pytest.raises(ValueError, match=f"to {size} dimensions .* in as many directions; these have {size - 1}"):
        fitted(vectors(size), size)


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
def test_dependent_vectors_count_only_by_their_rank(rank):
    x = vectors(400, rank=rank)
    assert rank == 0 or torch.isfinite(fitted(x, rank).kernel).all()
    with pytest.raises(ValueError, match="needs vectors in as many directions; these have"):
        fitted(x, rank + 1)
