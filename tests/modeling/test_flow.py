"""BERT-flow: Glow against an independent float64 implementation, its determinant against autograd, and its fit."""

import math

import numpy as np
import pytest
import torch

from csezoo.modeling.contrastive.flow import Flow, draw_flow, flow_loss, start_flow
from csezoo.training.errors import UserError
from csezoo.training.loop.served.fitted_maps import fit_flow


def skewed(n: int, size: int = 16) -> torch.Tensor:
    """Vectors that are far from Gaussian, and correlated."""
    generator = torch.Generator().manual_seed(1)
    mixed = torch.randn(n, size, generator=generator, dtype=torch.float64)
    return (mixed @ torch.randn(size, size, generator=generator, dtype=torch.float64) / 4).exp()


def random_flow(size: int = 16) -> Flow:
    torch.manual_seed(0)
    flow = Flow(size, 4).double()
    for parameter in flow.parameters():
        parameter.normal_(0, 0.3)
    return flow


def numpy_flow(flow: Flow, x: np.ndarray) -> np.ndarray:
    def norm(layer, x):
        return (x + layer.bias.numpy()) * np.exp(3 * layer.log_scale.numpy())

    latent = []
    for number, level in enumerate(flow.levels):
        for step in level:
            x = norm(step.norm, x)[:, ::-1]
            kept, changed = np.split(x, 2, axis=1)
            hidden = kept
            for linear, after in zip(step.hidden, step.hidden_norm, strict=True):
                hidden = np.maximum(norm(after, hidden @ linear.weight.numpy().T), 0)
            x = np.concatenate([kept, changed + norm(step.last_norm, hidden @ step.last.weight.numpy().T)], axis=1)
        if number < 2:
            x, part = np.split(x, 2, axis=1)
            latent.append(part)
    return np.concatenate([*latent, x], axis=1)


def test_the_flow_equals_its_equations():
    flow, x = random_flow(), skewed(5)
    np.testing.assert_allclose(flow(x).numpy(), numpy_flow(flow, x.numpy()), atol=1e-10)


def test_the_loss_is_the_likelihood_by_the_change_of_variables():
    flow, x = random_flow(), skewed(3)
    densities = []
    for row in x:
        jacobian = torch.autograd.functional.jacobian(lambda v: flow(v[None])[0], row)
        gaussian = torch.distributions.Normal(0.0, 1.0).log_prob(flow(row[None])).sum()
        densities.append((gaussian + torch.linalg.slogdet(jacobian).logabsdet).item())
    assert flow_loss(flow, x).item() == pytest.approx(-np.mean(densities) / (16 * math.log(2)), abs=1e-10)


def test_before_the_first_update_every_feature_is_normalised():
    flow, x = random_flow(), skewed(50)
    start_flow(flow, x)
    z = flow(x)
    np.testing.assert_allclose(z.mean(0).numpy(), 0, atol=1e-5)
    np.testing.assert_allclose(z.std(0, correction=0).numpy(), 1, atol=1e-4)


def test_the_random_start_is_that_of_the_release():
    """Norms from U(-a, a) with a = sqrt(6 / (1 + features)), couplings that add nothing."""
    torch.manual_seed(0)
    flow, x = Flow(64, 32).double(), skewed(9, size=64)
    draw_flow(flow)
    for size, level in zip((64, 32, 16), flow.levels, strict=True):
        for step in level:
            limit = math.sqrt(6 / (1 + size))
            for tensor in (step.norm.bias, step.norm.log_scale):
                assert 0.8 * limit < tensor.abs().max() <= limit
            assert not step.last(step.hidden_norm[1](step.hidden[1](torch.ones(1, 32, dtype=x.dtype)))).any()
            assert 0.04 < step.hidden[1].weight.std() < 0.06
    np.testing.assert_allclose(flow(x).numpy(), numpy_flow(flow, x.numpy()), atol=1e-10)


def test_the_optimizer_of_the_release_reads_pairs_clips_and_does_not_correct_its_bias():
    x = skewed(64)
    options = {"epochs": 1, "learning_rate": 1e-3, "seed": 3, "optimizer": "released"}
    torch.manual_seed(3)
    flow = Flow(16, 32).double()
    draw_flow(flow)
    order = torch.randperm(64)  # one update, of all 64
    flow.requires_grad_(True)
    first, second = (flow_loss(flow, x[half]) for half in (order[:32], order[32:]))
    (first + second).backward()
    scale = 1 / max(1.0, math.sqrt(sum(weight.grad.square().sum().item() for weight in flow.parameters())))
    for fitted, weight in zip(fit_flow(x, start="random", **options).parameters(), flow.parameters(), strict=True):
        gradient = scale * weight.grad
        step = 1e-3 * 0.1 * gradient / (math.sqrt(0.001) * gradient.abs() + 1e-6)
        torch.testing.assert_close(fitted, ((1 - 1e-5) * (weight - step)).detach(), atol=1e-9, rtol=0)


def test_fitting_raises_the_likelihood_and_depends_on_the_seed_alone():
    x, state = skewed(64), torch.get_rng_state()
    options = {"learning_rate": 1e-3, "seed": 3}
    short, fitted = (fit_flow(x, epochs=epochs, **options) for epochs in (0.5, 15))
    assert flow_loss(fitted, x) < flow_loss(short, x) - 0.1
    again = fit_flow(x, epochs=15, **options)
    assert all(torch.equal(a, b) for a, b in zip(fitted.parameters(), again.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(parameter.requires_grad for parameter in fitted.parameters())


def test_sizes_and_numbers_that_cannot_be_fitted_are_refused():
    with pytest.raises(ValueError, match="12 dimensions are no multiple of 8"):
        Flow(12, 4)
    with pytest.raises(UserError, match="flow: 31 sentences are too few"):
        fit_flow(skewed(31), epochs=1, learning_rate=1e-3, seed=0)
