"""WK pooling against an independent float64 implementation with numpy's QR decomposition, one token at a time."""

import numpy as np
import pytest
import torch

from csezoo.modeling.pooling import pool
from csezoo.modeling.serving.own_form_csezoo import wk_pool

LENGTHS = [6, 3, 2]


def states(layers: int) -> tuple[torch.Tensor, ...]:
    """Vectors that change a little from layer to layer, as those of an encoder do."""
    torch.manual_seed(0)
    steps = torch.randn(layers + 1, 3, 6, 16, dtype=torch.float64)
    return tuple((0.5 * steps).cumsum(0) + 2)


def mask() -> torch.Tensor:
    return torch.tensor([[1] * n + [0] * (6 - n) for n in LENGTHS])


def cosine(x, y):
    return x @ y / (np.linalg.norm(x) * np.linalg.norm(y))


def unified(layers: np.ndarray) -> np.ndarray:
    """The vector of one token `(K, H)`, by the paper's equations on the columns of R."""
    alignment, novelty = [], []
    for k in range(len(layers)):
        context = [*(layers[k - 2 : k] if k >= 2 else []), *layers[k + 1 : k + 3]]
        _, r = np.linalg.qr(np.stack([*context, layers[k]]).T)
        mine = r[:, -1]  # of the layer, in the basis of its context and one new direction
        projected = np.append(mine[:-1], 0)
        cosines = [cosine(r[:, j], projected) for j in range(len(context))]
        alignment.append(1 / (np.mean(cosines) * (len(context) + 1) * 2))
        novelty.append(abs(mine[-1]) / np.linalg.norm(mine))
    weights = np.array(alignment) / np.sum(alignment) + np.array(novelty) / np.sum(novelty)
    return layers.T @ (weights / weights.sum())


def expected(hidden_states, length: int, row: int) -> np.ndarray:
    layers = np.stack([state[row].numpy() for state in hidden_states])
    layers = layers[{12: 4, 6: 2, 2: 0}[len(layers) - 1] :]
    tokens = range(length - 1)  # without [SEP]
    changes = [np.var([cosine(a, b) for a, b in zip(layers[:-1, t], layers[1:, t], strict=True)]) for t in tokens]
    vectors = [unified(layers[:, t]) for t in tokens]
    return np.average(vectors, axis=0, weights=changes)


@pytest.mark.parametrize("layers", [2, 6, 12])
def test_wk_pooling_equals_its_equations(layers):
    hidden_states = states(layers)
    pooled = wk_pool(hidden_states, mask())
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(pooled[row].numpy(), expected(hidden_states, length, row), atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_and_the_last_token_do_not_change_the_vector(dtype):
    hidden_states = tuple(state.to(dtype) for state in states(6))
    last = torch.tensor(LENGTHS).unsqueeze(1) - 1
    ignored = (torch.arange(6) >= last).unsqueeze(-1)
    noisy = tuple(state.masked_fill(ignored, 1e3) for state in hidden_states)
    assert torch.equal(pool(hidden_states, mask(), "wk"), pool(noisy, mask(), "wk"))


def test_float32_is_close_to_float64():
    hidden_states = states(12)
    single = wk_pool(tuple(state.float() for state in hidden_states), mask())
    np.testing.assert_allclose(single.numpy(), wk_pool(hidden_states, mask()).numpy(), rtol=1e-4, atol=1e-5)
