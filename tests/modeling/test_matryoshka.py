"""Matryoshka losses against their definition in numpy, and with every method."""

import numpy as np
import pytest
import torch

from csezoo.modeling import METHODS
from tests.formulas import array, numpy_info_nce
from tests.methods import COMBINATIONS, TESTED
from tests.tiny import batch, training_model

DIMS, WEIGHTS = [4, 16], [0.5, 2.0]


def without_dropout(name="simcse", **changes):
    changes = {"mask_token_id": 4, "special_token_ids": [0, 2, 3, 4], **changes}
    return training_model(name, **changes)


@pytest.mark.parametrize("kept", [False, True])
def test_each_width_has_the_loss_of_the_first_dimensions_of_the_served_vector(kept):
    """Where the projection is not served, it reads the first dimensions with its weights for them (MRL-E)."""
    model = without_dropout(projection_at_test=kept, matryoshka_dims=DIMS, matryoshka_weights=WEIGHTS)
    rows = batch()
    # The positive is another sentence: with dropout off, the same one would be trivial.
    rows["input_ids"][:, 1] = rows["input_ids"][:, 1].roll(1, dims=0)
    rows["attention_mask"][:, 1] = rows["attention_mask"][:, 1].roll(1, dims=0)
    output = model(**rows)
    pooled = array(model.pool_views(**rows))
    projection = model.model.projection if kept else model.projection
    weight, bias = map(array, (projection.dense.weight, projection.dense.bias))
    expected = {"contrastive": numpy_info_nce(*np.moveaxis(np.tanh(pooled @ weight.T + bias), 1, 0))}
    for dim in DIMS:
        if kept:
            short = np.tanh(pooled @ weight.T + bias)[..., :dim]
        else:
            short = np.tanh(pooled[..., :dim] @ weight[:, :dim].T + bias)
        expected[f"matryoshka_{dim}"] = numpy_info_nce(*np.moveaxis(short, 1, 0))
    assert {name: loss.item() for name, loss in output.losses.items()} == pytest.approx(expected, abs=1e-9)
    total = expected["contrastive"] + 0.5 * expected["matryoshka_4"] + 2.0 * expected["matryoshka_16"]
    assert output.loss.item() == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("name", [*METHODS, *COMBINATIONS])
def test_it_is_added_to_the_loss_of_every_method_and_with_weight_0_changes_nothing(name):
    keys = {}
    for one in name.split("+"):
        keys |= TESTED[one].settings
    rows = batch(views=TESTED[name].views if name in TESTED else 2)
    outputs = []
    for changes in ({}, {"matryoshka_weights": [0.0, 0.0]}, {"matryoshka_weights": WEIGHTS}):
        model = without_dropout(name, **keys, **({"matryoshka_dims": DIMS, **changes} if changes else {}))
        torch.manual_seed(1)
        output = model(**rows)
        output.loss.backward()
        gradients = {key: each.grad for key, each in model.named_parameters() if each.grad is not None}
        outputs.append((output, gradients))
    (plain, gradients), (neutral, same), (full, _) = outputs
    torch.testing.assert_close(neutral.loss, plain.loss, atol=1e-9, rtol=0)
    torch.testing.assert_close(same, gradients, atol=1e-9, rtol=0)
    short = {key: loss for key, loss in full.losses.items() if key.startswith("matryoshka")}
    assert list(short) == ["matryoshka_4", "matryoshka_16"]
    expected = plain.loss + 0.5 * short["matryoshka_4"] + 2.0 * short["matryoshka_16"]
    torch.testing.assert_close(full.loss, expected, atol=1e-9, rtol=0)


def test_the_weights_are_1_by_default():
    output = without_dropout(matryoshka_dims=DIMS)(**batch())
    torch.testing.assert_close(output.loss, sum(output.losses.values()))


def test_duplicates_are_no_negatives_at_any_width():
    rows = {key: tensor[[0, 1, 0]] for key, tensor in batch().items()}  # the first sentence twice
    masked, unmasked = (
        without_dropout(matryoshka_dims=DIMS, mask_duplicates=mask)(**rows).losses for mask in (True, False)
    )
    for dim in DIMS:
        assert masked[f"matryoshka_{dim}"] < unmasked[f"matryoshka_{dim}"]
