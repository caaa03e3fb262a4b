"""Pooling and projections against an independent float64 implementation in numpy."""

import numpy as np
import pytest
import torch

from csezoo.modeling.pooling import BatchNormProjection, pool
from csezoo.modeling.serving.pooling_csezoo import pool_mask_token

LENGTHS = [5, 3, 1]


@pytest.fixture
def hidden_states():
    generator = np.random.default_rng(1)
    return tuple(torch.from_numpy(generator.normal(size=(3, 5, 4))) for _ in range(4))


@pytest.fixture
def attention_mask():
    return torch.tensor([[1] * n + [0] * (5 - n) for n in LENGTHS])


MODES = ["cls", "mean", "max", "first_last_mean", "embeddings_last_mean", "last2_mean", "last"]


def numpy_pool(states, mode):
    """One sentence at a time, over its real tokens only."""
    rows = []
    for i, n in enumerate(LENGTHS):
        real = [state[i, :n].numpy() for state in states]
        rows.append(
            {
                "cls": lambda real=real: real[-1][0],
                "mean": lambda real=real: real[-1].mean(0),
                "max": lambda real=real: real[-1].max(0),
                "first_last_mean": lambda real=real: ((real[1] + real[-1]) / 2).mean(0),
                "embeddings_last_mean": lambda real=real: ((real[0] + real[-1]) / 2).mean(0),
                "last2_mean": lambda real=real: ((real[-2] + real[-1]) / 2).mean(0),
                "last": lambda real=real: real[-1][-1],
            }[mode]()
        )
    return np.stack(rows)


@pytest.mark.parametrize("mode", MODES)
def test_pooling_equals_its_definition(hidden_states, attention_mask, mode):
    pooled = pool(hidden_states, attention_mask, mode)
    np.testing.assert_allclose(pooled.numpy(), numpy_pool(hidden_states, mode), atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_never_changes_the_vector(hidden_states, attention_mask, mode, dtype):
    states = tuple(state.to(dtype) for state in hidden_states)
    noisy = tuple(state.masked_fill(attention_mask.unsqueeze(-1) == 0, 1e4) for state in states)
    assert torch.equal(pool(states, attention_mask, mode), pool(noisy, attention_mask, mode))


@pytest.mark.parametrize("mode", ["mean", "first_last_mean", "embeddings_last_mean", "last2_mean"])
def test_the_mean_of_a_long_text_in_half_precision_is_finite(mode):
    states = (torch.full((1, 8192, 4), 9.0, dtype=torch.float16),) * 3
    assert torch.equal(pool(states, torch.ones(1, 8192), mode), torch.full((1, 4), 9.0, dtype=torch.float16))


def test_the_mean_of_no_token_is_zero(hidden_states):
    assert torch.equal(pool(hidden_states, torch.zeros(3, 5), "mean"), torch.zeros(3, 4, dtype=torch.float64))


def test_the_error_names_an_unknown_pooling(hidden_states, attention_mask):
    with pytest.raises(ValueError, match="'median' must be one of cls"):
        pool(hidden_states, attention_mask, "median")


def test_prompt_pooling_takes_the_last_mask_token():
    hidden = torch.arange(8.0).view(2, 4, 1)
    input_ids = torch.tensor([[1, 5, 5, 9], [5, 1, 9, 0]])  # tokens of smaller and of larger ids come after it
    assert pool_mask_token(hidden, input_ids, mask_token_id=5).flatten().tolist() == [2.0, 4.0]


def numpy_batch_norm(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def test_batch_norm_projection_equals_its_equation():
    projection = BatchNormProjection(4).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    expand, reduce = (layer.weight.detach().numpy() for layer in (projection.expand, projection.reduce))
    hidden = np.maximum(numpy_batch_norm(x.numpy() @ expand.T), 0)
    np.testing.assert_allclose(projection(x).detach().numpy(), numpy_batch_norm(hidden @ reduce.T), atol=1e-10)
    assert {name for name, _ in projection.named_parameters()} == {
        "expand.weight",
        "expand_norm.weight",
        "expand_norm.bias",
        "reduce.weight",
    }


def test_the_last_token_is_found_on_either_side_of_the_padding(hidden_states, attention_mask):
    flipped = tuple(
        state.flip(1) for state in hidden_states
    )  # the last token is then the first one, padded on the left
    real = torch.stack([state[5 - n :][-1] for state, n in zip(flipped[-1], LENGTHS, strict=True)])
    assert torch.equal(pool(flipped, attention_mask.flip(1), "last"), real)
