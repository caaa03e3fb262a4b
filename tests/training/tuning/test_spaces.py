"""Spaces: the papers' grids, intervals, and mistakes in them."""

import json
import math

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from csezoo.training.errors import UserError
from csezoo.training.recipes import load_recipe
from csezoo.training.tuning.spaces import load_space, points, space_names

RECIPE = "simcse-bert-base-uncased"


@pytest.mark.parametrize(
    "name, recipe, number",
    [
        ("diffcse/appendix-a", "diffcse-bert-base-uncased-sts", 200),
        ("prdsimcse/table-3", "prdsimcse-roberta-base", 15),
    ],
)
def test_the_grids_of_the_papers_have_as_many_points_as_the_papers_say(name, recipe, number):
    assert name in space_names()
    assert points(load_space(name, recipe, {})) == number


def written(tmp_path, text):
    (tmp_path / "space.yaml").write_text(text, encoding="utf-8")
    return str(tmp_path / "space.yaml")


def test_a_key_has_choices_or_an_interval(tmp_path):
    text = "learning_rate: {low: 1.0e-6, high: 1.0e-4, log: true}\nbatch_size: {low: 16, high: 64, step: 16}\n"
    text += "epochs: {low: 1, high: 3, step: 0.5}\ntemperature: [0.05, 0.1]\nadam_betas: [[0.9, 0.999], [0.9, 0.98]]\n"
    space = load_space(written(tmp_path, text), RECIPE, {})
    assert space == {
        "learning_rate": FloatDistribution(1e-6, 1e-4, log=True),
        "batch_size": IntDistribution(16, 64, step=16),
        "epochs": FloatDistribution(1, 3, step=0.5),
        "temperature": CategoricalDistribution([0.05, 0.1]),
        "adam_betas": CategoricalDistribution(["0.9,0.999", "0.9,0.98"]),
    }
    assert points(space) == math.inf


@pytest.mark.parametrize(
    "text, message",
    [
        ("learning_rat: [1.0e-5]", "did you mean learning_rate"),
        ("learning_rate: [-1.0]", "learning_rate"),
        ("learning_rate: 1.0e-5", "must be a list, or {low"),
        ("learning_rate: {low: 1e-5, high: 1.0}", "'1e-5' is not a number; write 1.0e-5"),
        ("learning_rate: {low: 1.0e-5, high: 1.0, step: .nan}", "step: nan is not finite"),
        ("learning_rate: {low: 1.0, high: 0.1}", "learning_rate: "),
        ("max_length: {low: 16, high: 64.0}", "max_length: high: 64.0 must be a whole number"),
        ("max_length: {low: 16, high: 64, step: 0.5}", "max_length: step: 0.5 must be a whole number"),
        ("max_length: {low: 16.5, high: 64}", "max_length: 16.5 is not a whole number"),
        ("max_length: [32, 64, 32]", "has a choice twice"),
        ("epochs: [1, 1.0, 2]", "has a choice twice"),
        ("batch_size: [8]", "batch_size is in the space and set too"),
        ("seeds: [1, 2]", "seeds is not a setting that a search can choose"),
        ("output_dir: [a, b]", "output_dir is not a setting that a search can choose"),
        ("", "the space is empty"),
    ],
)
def test_a_mistake_in_a_space_is_named(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load_space(written(tmp_path, text), RECIPE, {"batch_size": 8})


def test_an_interval_is_of_the_type_of_its_key(tmp_path):
    """YAML reads 0 and 1 as whole numbers."""
    text = "rtd_weight: {low: 0, high: 1}\nbatch_size: {low: 8, high: 64, log: true}\n"
    text += "matryoshka_dims: {low: 8, high: 32}\ndropout: {low: 0, high: 0.5}\n"
    space = load_space(written(tmp_path, text), "diffcse-bert-base-uncased-sts", {})
    assert space == {
        "rtd_weight": FloatDistribution(0, 1),
        "batch_size": IntDistribution(8, 64, log=True),
        "matryoshka_dims": IntDistribution(8, 32),
        "dropout": FloatDistribution(0, 0.5),
    }


def test_a_mapping_is_one_choice(tmp_path):
    space = load_space(written(tmp_path, "named_prompts: [{query: 'query: '}, {passage: 'p: '}]"), RECIPE, {})
    first, second = space["named_prompts"].choices
    assert load_recipe(RECIPE, {"named_prompts": first}).model["named_prompts"] == {"query": "query: "}
    assert load_recipe(RECIPE, {"named_prompts": second}).model["named_prompts"] == {"passage": "p: "}


def test_a_space_that_does_not_exist_names_those_of_the_papers():
    with pytest.raises(UserError, match="neither a YAML file nor one of diffcse/appendix-a"):
        load_space("diffcse/table-3", RECIPE, {})


def test_the_prompts_of_a_choice_reach_the_recipe(tmp_path):
    prompts = ['This sentence of "{sentence}" means {mask} .', "{sentence}, in a word: {mask}"]
    recipe = "promptbert-bert-base-uncased"
    (choice,) = load_space(written(tmp_path, f"prompts: [{json.dumps(prompts)}]"), recipe, {})["prompts"].choices
    assert load_recipe(recipe, {"prompts": choice}).model["prompts"] == prompts
