"""The keys of a method are what its configuration class declares."""

import pytest

from csezoo.modeling import METHODS, method
from csezoo.training.recipes import load_recipe, make_recipe, method_keys
from csezoo.training.recipes.methods import key_names


@pytest.mark.parametrize("name", [*METHODS, "l2pcsr+diffcse"])
def test_every_argument_is_a_key_with_the_default_of_the_configuration(name):
    keys = method_keys(name)
    assert {"pooling", "projection", "temperature", "prompts", "denoise", "mlm_weight"} <= keys.keys()
    assert not {"backbone_config", "prompt_token_ids", "self", "kwargs"} & keys.keys(), "a run fills these in"
    defaults = {key: known.default for key, known in keys.items()}
    config = method(name)[0]()
    assert {key: getattr(config, key) for key in keys} == defaults
    assert make_recipe({"method": name, **defaults}).model == defaults


@pytest.mark.parametrize("name", ["simcse", "prdsimcse", "sgopt", "l2pcsr", "isbert"])
def test_the_defaults_are_the_keys_of_the_papers_recipe_for_bert_base(name):
    stated = load_recipe(f"{name}-bert-base-uncased").model
    assert stated and stated == {key: method_keys(name)[key].default for key in stated}


def test_a_key_that_a_method_declares_again_has_the_methods_default_and_help():
    keys = method_keys("sgopt")
    assert (keys["temperature"].group, keys["temperature"].default) == ("sgopt", 0.01)
    assert keys["temperature"].help == "τ, 0.01 in the paper."
    assert keys["temperature"].allowed == method_keys("simcse")["temperature"].allowed
    assert next(iter(keys.values())).group == "sgopt", "its own come first"


@pytest.mark.parametrize("name", [*METHODS, "l2pcsr+diffcse"])
def test_the_names_that_are_read_from_the_source_have_those_of_the_classes(name):
    assert key_names(name) >= method_keys(name).keys()
