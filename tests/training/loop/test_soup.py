"""The soup of a run's best checkpoints is their mean in float64, and never worse on dev than the best of them."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from csezoo.training.errors import UserError
from csezoo.training.loop import runs
from csezoo.training.loop.served.soup import Soup, average_weights
from csezoo.training.recipes import make_recipe
from tests.training.loop.test_train import lines, values


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


class Weight(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor([value]))


@pytest.mark.parametrize(("size", "kept"), [(1, [1]), (2, [1]), (3, [1, 3]), (4, [1, 3])])
def test_weights_are_added_from_the_best_on_unless_they_lower_the_score(size, kept, tmp_path):
    """The score is best at 2.0: the mean of 1.0 and 3.0, but the second best weights are on the side of the first."""
    soup = Soup(tmp_path / "soup", size)
    for step, value in ((1, 1.0), (2, 0.8), (3, 3.3), (4, -9.0)):
        soup.add(-abs(value - 2.0), step, Weight(value), write=True)
    assert len(list((tmp_path / "soup").iterdir())) == size
    weights, steps, score = soup.cook(lambda state: -abs(state["value"].item() - 2.0))
    assert steps == kept and score == pytest.approx(-abs(weights["value"].item() - 2.0))
    assert weights["value"].item() == pytest.approx(np.mean([{1: 1.0, 3: 3.3}[step] for step in kept]))


def test_a_step_that_is_repeated_after_a_resume_counts_once(tmp_path):
    soup = Soup(tmp_path / "soup", 2)
    for step in (1, 2, 2):
        soup.add(50.0 + step, step, Weight(float(step)), write=True)
    assert soup.ranked == [(52.0, 2), (51.0, 1)]


def test_the_best_repository_of_a_run_is_the_mean_of_its_soup(bases, train_file, dev_file, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "remove", lambda path: None)  # the run would delete the single weights
    recipe = values(bases["bert"], train_file, dev_file, tmp_path / "run", soup=4, eval_steps=1, max_steps=6)
    results = runs.run_recipe(make_recipe({**recipe, "learning_rate": 1e-3}))
    steps = results["training"]["soup"]
    assert len(steps) > 1, "else nothing is tested"
    single = [load_file(tmp_path / "run" / "soup" / f"step-{step:08d}.safetensors") for step in steps]
    best = load_file(tmp_path / "run" / "best" / "model.safetensors")
    for name, tensor in best.items():
        mean = np.mean([state[name].double().numpy() for state in single], axis=0)
        assert np.abs(tensor.double().numpy() - mean).max() < 1e-7, name
    scores = {line["step"]: line["dev"] for line in lines(tmp_path / "run") if "dev" in line}
    assert results["training"]["dev"] >= max(scores.values()) == scores[steps[0]]
    (dev,) = [result["value"] for result in results["results"] if result["task"] == "dev"]
    assert dev == pytest.approx(results["training"]["dev"], abs=1e-4), "what is served is what was chosen"


def test_a_finished_run_does_not_keep_the_single_weights(bases, train_file, dev_file, tmp_path):
    recipe = values(bases["bert"], train_file, dev_file, tmp_path / "run", soup=2, eval_steps=1, max_steps=2)
    runs.run_recipe(make_recipe(recipe))
    assert not (tmp_path / "run" / "soup").exists()


def test_a_soup_needs_dev_pairs():
    with pytest.raises(UserError, match="soup: the best weights are chosen by their dev scores; give --dev_file"):
        make_recipe({"soup": 2, "eval_data": "none"})
