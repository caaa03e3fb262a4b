"""The optimizers of a recipe: their updates against the equations, training, resume and errors."""

import math

import pytest
import torch

from csezoo.training.loop.optimizers import Transformers4AdamW, UncorrectedAdamW, make_optimizer
from csezoo.training.recipes import Recipe, make_recipe
from csezoo.training.recipes.keys import OPTIMIZERS

RATE, BETAS, EPSILON, DECAY = 0.01, (0.9, 0.999), 1e-8, 0.1
GRADIENTS = (3e-6, -1e-6, 2e-2)  # small ones, of which ε is a part


def by_hand(weight: float, corrects_bias: bool = True) -> list[float]:
    """The weight after each update: ε before the bias correction, if there is one, and decay after the step."""
    mean = square = 0.0
    weights = []
    for number, gradient in enumerate(GRADIENTS, start=1):
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        correction = math.sqrt(1 - BETAS[1] ** number) / (1 - BETAS[0] ** number) if corrects_bias else 1.0
        weight -= RATE * correction * mean / (math.sqrt(square) + EPSILON)
        weight -= RATE * DECAY * weight
        weights.append(weight)
    return weights


def updates(optimizer_class, **options) -> list[float]:
    weight = torch.nn.Parameter(torch.tensor([0.5, 0.5], dtype=torch.float64))
    still = torch.nn.Parameter(torch.ones(1))  # has no gradient
    optimizer = optimizer_class([weight, still], lr=RATE, betas=BETAS, eps=EPSILON, **options)
    weights = []
    for gradient in GRADIENTS:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        assert weight[0] == weight[1] and still.item() == 1
        weights.append(weight[0].item())
    return weights


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("kind", "corrects_bias"), [(Transformers4AdamW, True), (UncorrectedAdamW, False)])
def test_an_adamw_of_transformers_4_equals_its_equation(kind, corrects_bias, fused):
    expected = by_hand(0.5, corrects_bias)
    assert updates(kind, weight_decay=DECAY, fused=fused) == pytest.approx(expected, rel=1e-12)


def test_a_schedule_sets_the_rate_of_both_adamw_of_transformers_4():
    """They change the groups that torch's AdamW sees, and must not lose the rate of the schedule."""
    for kind in (Transformers4AdamW, UncorrectedAdamW):
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = kind([weight], lr=RATE)
        for rate in (RATE, 0.0):
            optimizer.param_groups[0]["lr"] = rate
            weight.grad, before = torch.ones(1), weight.item()
            optimizer.step()
            assert (weight.item() == before) == (rate == 0) and optimizer.param_groups[0]["lr"] == rate


def test_rmsprop_forgets_as_fast_as_its_recipe_says():
    """The first update is the rate divided by the square root of what is new: 10 rates in torch, 3.2 in Keras."""
    for alpha, first in ((0.99, 10.0), (0.9, math.sqrt(10))):
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        weight.grad = torch.ones_like(weight)
        recipe = Recipe(optimizer="rmsprop", rmsprop_alpha=alpha, adam_epsilon=1e-12)
        make_optimizer(recipe, [{"params": [weight]}], learning_rate=RATE).step()
        assert weight.item() == pytest.approx(-first * RATE, rel=1e-9)


def test_a_weight_that_was_left_out_of_an_update_has_its_own_count():
    first, second = (torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64)) for _ in range(2))
    optimizer = Transformers4AdamW([first, second], lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    first.grad = torch.full_like(first, 1.0)
    optimizer.step()
    for number, gradient in enumerate(GRADIENTS):
        second.grad = torch.full_like(second, gradient)
        optimizer.step()
        assert second.item() == pytest.approx(by_hand(0.5)[number], rel=1e-12)


def test_it_differs_from_torchs_adamw_in_the_place_of_epsilon():
    """For a gradient of ten times ε / sqrt(1 - β₂) the first update is 9 % smaller; without ε both are equal."""
    gradient = 10 * EPSILON / math.sqrt(1 - BETAS[1])
    moved = {}
    for optimizer_class in (torch.optim.AdamW, Transformers4AdamW):
        for epsilon in (EPSILON, 0.0):
            weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
            weight.grad = torch.full_like(weight, gradient)
            optimizer_class([weight], lr=RATE, betas=BETAS, eps=epsilon, weight_decay=0.0).step()
            moved[optimizer_class, epsilon] = weight.item()
    ratio = moved[Transformers4AdamW, EPSILON] / moved[torch.optim.AdamW, EPSILON]
    assert ratio == pytest.approx(1 / 1.1, rel=0.005)
    assert moved[Transformers4AdamW, 0.0] == pytest.approx(moved[torch.optim.AdamW, 0.0], rel=1e-12)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*zip(OPTIMIZERS, (torch.optim.AdamW, Transformers4AdamW, UncorrectedAdamW, torch.optim.RMSprop), strict=True)],
)
def test_a_recipe_names_its_optimizer(name, kind):
    weight = torch.nn.Parameter(torch.zeros(2))
    recipe = Recipe(optimizer=name, adam_epsilon=1e-5)
    optimizer = make_optimizer(recipe, [{"params": [weight], "weight_decay": 0.3}], learning_rate=0.2)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["eps"], group["weight_decay"]) == (0.2, 1e-5, 0.3)


@pytest.mark.parametrize("name", ["adamw", "adamw-transformers4", "adamw-uncorrected"])
@pytest.mark.parametrize("fp16", [False, True])
def test_no_optimizer_turns_off_the_updates_of_many_tensors_at_once(name, fp16):
    """`fused=False` would also turn off `foreach`, which torch chooses on a GPU if neither is set."""
    recipe = make_recipe({"name": "tiny", "optimizer": name, "method": "simcse", "base_model": "x", "train_file": "x"})
    weight = torch.nn.Parameter(torch.ones(1))
    (group,) = make_optimizer(recipe, [{"params": [weight]}], 0.1, fp16=fp16).param_groups
    assert group["foreach"] is None
    assert group["fused"] is (None if fp16 else True)
