"""Compiled layers read packed tokens: the same numbers, and one compilation for all numbers of tokens."""

import copy

import pytest
import torch
import torch._dynamo

from csezoo.modeling import METHODS
from csezoo.modeling.contrastive.compiled_layers import compile_layers
from csezoo.training.benchmarks.training import encoders
from tests.modeling.test_packing import batch, configured, mirrored, packed_whatever_it_costs  # noqa: F401 (one is a fixture)

CHANGING_LAYERS = ("diffaug", "l2pcsr")  # not LoRA: its parts are compiled again for another number of tokens
# Where a graph breaks, torch itself looks at what it carries over.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def loss_and_gradients(model, rows):
    torch.manual_seed(3)
    model.zero_grad()
    loss = model(**rows).loss
    loss.backward()
    return loss.detach(), [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("name", ["simcse", *(pytest.param(name, marks=pytest.mark.slow) for name in CHANGING_LAYERS)])
def test_compiled_layers_give_the_numbers_of_others_for_any_number_of_tokens(name):
    config = configured(name, "bert")
    torch.manual_seed(0)
    model = METHODS[config.model_type][2](config).double().train()
    compiled = copy.deepcopy(model)
    first, second, *others = [mirrored(batch(sentences=number)) for number in (5, 6, 7, 9)]
    loss_and_gradients(compiled, first)
    for encoder in encoders(compiled):
        compile_layers(encoder, backend="aot_eager")
    for rows in (first, second):
        torch.testing.assert_close(loss_and_gradients(compiled, rows), loss_and_gradients(model, rows))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in others:
            torch.testing.assert_close(loss_and_gradients(compiled, rows), loss_and_gradients(model, rows))
