"""The soup of a run's best checkpoints is their mean in float64, and never worse on dev than the best of them."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from csezoo.training.files import read_json
from csezoo.training.loop.served.best_weights import BestWeights
from csezoo.training.loop.served.soup import Soup, average_weights
from tests.methods import run_keys
from tests.training.runs import lines, train


def test_the_average_is_the_mean_in_float64():
    draws = np.random.default_rng(0)
    states = [
        {"weight": torch.tensor(draws.normal(size=(3, 2)), dtype=torch.float32), "count": torch.tensor(step)}
        for step in (4, 5, 6)
    ]
    mean = average_weights(states)
    expected = np.mean([state["weight"].numpy().astype(np.float64) for state in states], axis=0)
    assert np.array_equal(mean["weight"].numpy(), expected.astype(np.float32))
    assert mean["count"].item() == 4


@pytest.mark.parametrize(("size", "kept"), [(1, [1]), (2, [1]), (3, [1, 3]), (4, [1, 3])])
def test_weights_are_added_from_the_best_on_unless_they_lower_the_score(size, kept):
    """The score is best at 2.0: the mean of 1.0 and 3.0, but the second best weights are on the side of the first."""
    soup = Soup(size)
    values_of_steps = {1: 1.0, 2: 0.8, 3: 3.3, 4: -9.0}
    for step, value in values_of_steps.items():
        soup.rank(-abs(value - 2.0), step)
    weights, steps, score = soup.average(
        lambda step: {"value": torch.tensor([values_of_steps[step]])},
        lambda state: -abs(state["value"].item() - 2.0),
    )
    assert steps == kept and score == pytest.approx(-abs(weights["value"].item() - 2.0))
    assert weights["value"].item() == pytest.approx(np.mean([{1: 1.0, 3: 3.3}[step] for step in kept]))


@pytest.mark.parametrize("method", ["simcse", "diffaug"])
def test_the_best_repository_of_a_run_is_the_mean_of_its_soup(tiny, bases, tmp_path, triplets, monkeypatch, method):
    """DiffAug computes the prefixes that it serves from other weights; those of the soup are their mean too."""
    monkeypatch.setattr(BestWeights, "delete_others", lambda *_: None)  # the run would delete the single weights
    changes = {"soup": 4, "eval_steps": 1}
    if method == "diffaug":
        # `padded`, because the draws of packed rows depend on how they are packed, and the soup on the draws.
        stage = {"nli_learning_rate": 3e-2, "nli_steps": 4, "max_steps": 4, "learning_rate": 1e-4, "padded": True}
        stage |= {"seeds": [1]}
        changes |= run_keys(method, bases["bert"], triplets) | stage
    results = train(tiny(**changes))
    steps = results["training"]["soup"]
    assert len(steps) > 1, "else nothing is tested"
    single = [load_file(tmp_path / "run" / "best_weights" / f"step-{step:08d}.safetensors") for step in steps]
    best = load_file(tmp_path / "run" / "best" / "model.safetensors")
    for name, tensor in best.items():
        if "pooler" in name:  # zeros, because transformers would draw them
            continue
        inside = name if name in single[0] else f"backbone.{name}"
        mean = np.mean([state[inside].double().numpy() for state in single], axis=0)
        assert np.abs(tensor.double().numpy() - mean).max() < 1e-7, name
    scores = {line["step"]: line["dev"] for line in lines(tmp_path / "run") if "dev" in line}
    assert results["training"]["dev"] >= max(scores.values()) == scores[steps[0]]
    (dev,) = [result["value"] for result in results["results"] if result["task"] == "dev"]
    assert dev == pytest.approx(results["training"]["dev"], abs=1e-4), "what is served is what was chosen"


def test_a_soup_that_is_lost_at_the_end_of_a_run_is_served_as_the_last_weights(tiny, tmp_path):
    recipe = tiny(soup=2, eval_steps=1, max_steps=2)
    train(recipe)
    (tmp_path / "run" / "results.json").unlink()
    next((tmp_path / "run" / "best_weights").iterdir()).unlink()
    training = train(recipe, force=True)["training"]
    assert training["soup"] == [] and training["updates"] == 2


def test_a_finished_run_can_be_evaluated_again(tiny, tmp_path):
    recipe = tiny(soup=2, eval_steps=1, max_steps=2)
    train(recipe)
    results = tmp_path / "run" / "results.json"
    first = read_json(results)
    results.unlink()
    train(recipe)
    again = read_json(results)
    assert again["results"] == first["results"] and again["training"]["soup"] == first["training"]["soup"]
