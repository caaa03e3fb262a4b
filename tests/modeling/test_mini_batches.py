"""Encoding a batch a few sentences at a time has the gradient of the complete batch."""

import pytest
import torch

from csezoo.modeling import METHODS
from csezoo.modeling.contrastive import mini_batches
from tests.conftest import NO_DROPOUT
from tests.methods import CONFIGS
from tests.tiny import batch, configure

# L2P-CSR and masked language modelling take the complete batch: `test_building` has their refusals.
ALLOWED = [name for name in CONFIGS if configure(name, "bert").reason_for_whole_batch is None]


def model(name, **dropout):
    torch.manual_seed(0)
    config = configure(name, "bert")
    config.backbone_config.update({f"{place}_dropout_prob": 0.1 for place in ("hidden", "attention_probs")} | dropout)
    return METHODS[config.model_type][2](config).double()


def step(model, mini_batch_size):
    """Loss and gradients of a batch with a fixed seed."""
    model.zero_grad()
    model.mini_batch_size = mini_batch_size
    torch.manual_seed(3)
    output = model(**batch(sentences=5))
    output.loss.backward()
    return output.loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same(made, expected):
    torch.testing.assert_close(made[0], expected[0], atol=1e-12, rtol=0)
    assert made[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(made[1][name], gradient, atol=1e-10, rtol=1e-8, msg=name)


@pytest.mark.parametrize("name", ALLOWED)
def test_the_backward_pass_repeats_the_dropout(name, monkeypatch):
    """The reference: the same mini-batches with all activations kept."""
    made = step(model(name), 2)
    monkeypatch.setattr(mini_batches, "checkpoint", lambda encode, *rows, use_reentrant: encode(*rows))
    assert_same(made, step(model(name), 2))


@pytest.mark.parametrize("name", ["simcse", "simcse-batchnorm", "prdsimcse", "sgopt", "diffaug", "diffaug-lora"])
def test_without_dropout_the_mini_batch_size_changes_nothing(name):
    trained = model(name, **NO_DROPOUT)
    whole = step(trained, None)
    for size in (1, 2, 5, 9):
        assert_same(step(trained, size), whole)


def kept_numbers(model, mini_batch_size) -> int:
    """How many numbers the forward pass keeps for the backward pass."""
    sizes = []
    model.mini_batch_size = mini_batch_size
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        model(**batch(sentences=5))
    return sum(sizes)


def test_the_activations_of_a_batch_are_not_kept():
    trained = model("simcse")
    assert kept_numbers(trained, 1) < kept_numbers(trained, None) / 10


def test_evaluation_ignores_mini_batches():
    trained = model("simcse").eval()
    with torch.no_grad():
        whole = trained(**batch(sentences=5)).embeddings
        trained.mini_batch_size = 2
        torch.testing.assert_close(trained(**batch(sentences=5)).embeddings, whole)
