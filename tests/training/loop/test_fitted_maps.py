"""A whitening that is refined: its few dimensions rank sentences as all dimensions do."""

import pytest
import torch
import torch.nn.functional as F

from csezoo.modeling.contrastive.whitening import Whitening
from csezoo.training.loop.served.fitted_maps import refine


def vectors(n, seed):
    """Vectors near one of 24 orthogonal topics. Six principal components see six topics, but could tell 24 apart."""
    generator = torch.Generator().manual_seed(seed)
    topics = torch.diag(torch.linspace(1.2, 0.8, 24))
    chosen = topics[torch.randint(24, (n,), generator=generator)]
    return chosen + 0.05 * torch.randn(n, 24, generator=generator)


def refined(fitted_to, *, updates, seed=0, power=0.5):
    whitening = Whitening(24, 6)
    whitening.fit(fitted_to, power)
    refine(whitening, fitted_to, power=power, updates=updates, seed=seed)
    return whitening


def agreement(whitening, power):
    """The share of the ten nearest vectors by all dimensions that the short vectors find too, for unseen vectors."""
    complete = Whitening(24, 24)
    complete.fit(vectors(2000, seed=1), power)
    unseen = vectors(300, seed=2)
    short, long = (F.normalize(whitened(unseen), dim=1) for whitened in (whitening, complete))
    near = [(units @ units.T).fill_diagonal_(-1).topk(10).indices for units in (short, long)]
    return (near[0][:, :, None] == near[1][:, None]).any(2).float().mean().item()


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_after_the_updates_unseen_vectors_have_more_of_the_neighbours_that_all_dimensions_find(power):
    fitted = Whitening(24, 6)
    fitted.fit(vectors(2000, seed=1), power)
    after = agreement(refined(vectors(2000, seed=1), updates=200, power=power), power)
    assert after > agreement(fitted, power) + 0.2


def test_the_seed_draws_the_batches():
    x = vectors(600, seed=1)
    kernels = [refined(x, updates=3, seed=seed).kernel for seed in (1, 1, 2)]
    assert kernels[0].equal(kernels[1]) and not kernels[0].equal(kernels[2])


def test_only_the_map_is_trained_and_it_is_finished():
    x = vectors(600, seed=1)
    before = x.clone()
    whitening = refined(x, updates=2)
    assert x.equal(before) and not x.requires_grad
    assert not whitening.kernel.requires_grad and whitening.kernel.grad_fn is None
