"""One declaration per key: what it allows is what is accepted, and everything else is one line."""

import math
import typing

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from csezoo.modeling import METHODS
from csezoo.training.errors import UserError
from csezoo.training.recipes import dump_recipe, load_recipe, make_recipe, method_keys
from csezoo.training.recipes.keys import recipe_keys
from csezoo.training.recipes.reading import optional
from tests.refusals import refusal

# Every key once, with a method that has it.
ALL = [("simcse", name, key) for name, key in {**recipe_keys(), **method_keys("simcse")}.items()]
ALL += [(method, name, key) for method in METHODS for name, key in method_keys(method).items() if key.group == method]


def of_type(key) -> type:
    """The type of a key, or of the items of a list."""
    plain, _ = optional(key.hint)
    return typing.get_args(plain)[0] if typing.get_args(plain) else plain


def identifier(parameter):
    return parameter if isinstance(parameter, str) else ""


NUMBERS = [entry for entry in ALL if of_type(entry[2]) in (int, float) and isinstance(entry[2].allowed, str)]
CHOICES = [entry for entry in ALL if isinstance(entry[2].allowed, tuple)]


def given_alone(method, name, value):
    """A recipe that sets one key, and what that key cannot be set without."""
    pairs = {"adam_betas": [value, 0.9], "seeds": [value]}
    companions = {"teachers": ["vectors"]} if name == "rank_weight" and value != 0 else {}
    if name in ("lr_boundaries", "lr_factors"):
        companions = {"lr_scheduler": "stepped", "lr_boundaries": [1], "lr_factors": [0.5]}
        del companions[name]
    return make_recipe({"method": method, "dataset": "some/data", name: pairs.get(name, value), **companions})


def ends(key) -> tuple[float, float]:
    least, most = map(float, key.allowed[1:-1].split(", "))
    return least, most


@pytest.mark.parametrize(("method", "name", "key"), ALL, ids=identifier)
def test_a_key_has_help_and_a_number_has_a_range(method, name, key):
    assert key.help.endswith(".") and "\n" not in key.help
    assert of_type(key) in (int, float, bool, str)
    assert key.allowed or of_type(key) in (bool, str), "a number without a range"
    if of_type(key) is int and isinstance(key.allowed, str):
        assert ends(key)[1] <= 10**10, "an absurd size is not allowed"


@pytest.mark.parametrize(("method", "name", "key"), NUMBERS, ids=identifier)
def test_the_ends_of_a_range_are_accepted_and_what_is_beyond_is_refused(method, name, key):
    least, most = ends(key)
    whole = of_type(key) is int
    for end, bracket, away in ((least, key.allowed[0], -math.inf), (most, key.allowed[-1], math.inf)):
        beyond = end + math.copysign(1, away) if whole else math.nextafter(end, away)
        for value, inside in ((end, bracket in "[]"), (beyond, False)):
            if inside:
                recipe = given_alone(method, name, value)
                found = {**vars(recipe), **recipe.model}[name]
                assert (found[0] if isinstance(found, list) else found) == value
            else:
                assert refusal(given_alone, method, name, value).startswith(f"{name}: ")


@settings(max_examples=400, deadline=None)
@given(entry=st.sampled_from(NUMBERS), value=st.floats() | st.integers() | st.sampled_from(["nan", "inf", 10**30]))
def test_any_number_is_in_the_range_or_refused_in_one_line(entry, value):
    method, name, key = entry
    least, most = ends(key)
    number = float(value)
    inside = least < number < most or (number == least and key.allowed[0] == "[")
    inside = inside or (number == most and key.allowed[-1] == "]")
    if inside and (of_type(key) is float or number.is_integer()):
        given_alone(method, name, value)
    else:
        line = refusal(given_alone, method, name, value)
        assert line.startswith(f"{name}: ")
        assert "must be" in line or "is not a whole number" in line


@pytest.mark.parametrize(("method", "name", "key"), CHOICES, ids=identifier)
def test_another_choice_is_refused_with_the_choices(method, name, key):
    other = "other" if of_type(key) is str else 99
    assert refusal(given_alone, method, name, other) == f"{name}: {other!r} must be one of " + ", ".join(
        map(str, key.allowed)
    )


def test_numpy_takes_every_seed_of_a_run():
    """A stage adds the updates before it, and a process its number."""
    (_, seed), (_, updates) = ends(recipe_keys()["seeds"]), ends(recipe_keys()["nli_steps"])
    np.random.RandomState(int(seed) + int(updates) + 100_000)


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 10**12},
        {"batch_size": 10**10},
        {"seeds": [1, 2**31]},
        {"temperature": math.nan},
        {"method": "diffaug", "prefix_length": 10**9},
        {"method": "l2pcsr+diffcse", "rtd_weight": math.inf},
    ],
)
def test_an_absurd_value_is_refused_with_what_is_allowed(values):
    assert " must be at least " in (line := refusal(make_recipe, values)) or " must be above " in line
    assert "and at most " in line


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"nli_steps": 2, "nli_epochs": 1}, "nli_steps and nli_epochs: give only one of them"),
        ({"streaming": True}, "give --max_steps too"),
        ({"streaming": True, "max_steps": 2, "train_fraction": 0.5}, "give --max_train_sentences instead"),
        ({"streaming": True, "max_steps": 2, "dataset": "stsb-sentences"}, "stsb-sentences cannot be streamed; leave"),
        ({"streaming": True, "max_steps": 2, "dataset": "sts-sentences"}, "sts-sentences cannot be streamed; leave"),
        ({"select_by": "last", "soup": 2}, "soup: the best weights are chosen by their dev scores; give another"),
        ({"eval_data": "none", "soup": 2}, "soup: the best weights are chosen by their dev scores; give --dev_file"),
        ({"select_by": "transfer-dev", "eval_data": "none"}, "transfer-dev reads --eval_data; give it"),
        ({"select_by": "sts-sickr-dev", "dev_file": "dev.csv"}, "give it, and no --dev_file"),
        ({"whitening": 4}, "whitening: it is fitted on training sentences; give --train_file or --dataset"),
        ({"flow": True}, "flow: it is fitted on training sentences; give --train_file or --dataset"),
        ({"flow": True, "whitening": 8, "dataset": "some/data"}, "flow and whitening: give only one of them"),
        ({"whitening": 8, "matryoshka_dims": [4], "dataset": "some/data"}, "whitening makes other dimensions after"),
        ({"flow": True, "matryoshka_dims": [4], "dataset": "some/data"}, "flow makes other dimensions after training"),
        ({"lr_scheduler": "constant", "warmup_ratio": 0.1}, "give --lr_scheduler constant_with_warmup, or 0"),
        ({"lr_scheduler": "stepped"}, "lr_boundaries and lr_factors belong to lr_scheduler stepped: give both"),
        ({"lr_boundaries": [5], "lr_factors": [0.5]}, "lr_boundaries and lr_factors belong to lr_scheduler stepped"),
        ({"lr_scheduler": "stepped", "lr_boundaries": [5, 9], "lr_factors": [0.5]}, "with as many numbers"),
        ({"lr_scheduler": "stepped", "lr_boundaries": [9, 5], "lr_factors": [1, 0]}, "lr_boundaries: [9, 5] must"),
        ({"lr_scheduler": "stepped", "lr_boundaries": [9], "lr_factors": [1], "warmup_ratio": 0.1}, "has no warm-up"),
        ({"lr_scheduler": "polynomial", "learning_rate": 1e-7}, "learning_rate: polynomial falls to 1e-07, got 1e-07"),
        ({"lr_scheduler": "polynomial", "nli_learning_rate": 0}, "nli_learning_rate: polynomial falls to 1e-07, got"),
        ({"adam_betas": [0.9]}, "adam_betas: [0.9] must be two numbers"),
        ({"rank_weight": 1.0}, "teachers and rank_weight belong together; give both or neither"),
        ({"teachers": ["a"]}, "teachers and rank_weight belong together; give both or neither"),
        ({"teachers": ["a", "b", "c"], "rank_weight": 1.0}, "teachers: expected one or two directories, got 3"),
        ({"teachers": ["a"], "rank_weight": 1.0, "streaming": True, "max_steps": 1}, "cannot be matched to teachers"),
        ({"seeds": []}, "seeds: [] must be one or more different numbers"),
        ({"seeds": [1, 1]}, "seeds: [1, 1] must be one or more different numbers"),
    ],
)
def test_keys_that_contradict_each_other_are_refused_together(values, line):
    assert line in refusal(make_recipe, values)


def values_of(key) -> st.SearchStrategy:
    """Everything a key allows."""
    item: st.SearchStrategy = st.booleans()
    if isinstance(key.allowed, tuple):
        item = st.sampled_from(key.allowed)
    elif of_type(key) is int:
        item = st.integers(*map(int, ends(key)))
    elif of_type(key) is float:
        least, most = ends(key)
        item = st.floats(least, most, exclude_min=key.allowed[0] == "(", exclude_max=key.allowed[-1] == ")")
    elif of_type(key) is str:
        item = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text not in ("null", "None"))
    plain, nullable = optional(key.hint)
    found = st.lists(item, min_size=1, max_size=3, unique=True) if typing.get_origin(plain) is list else item
    return st.none() | found if nullable else found


@settings(max_examples=200, deadline=None)
@given(data=st.data(), method=st.sampled_from([*METHODS, "l2pcsr+diffcse"]))
def test_any_recipe_written_and_read_again_is_the_same(tmp_path_factory, data, method):
    keys = {**recipe_keys(), **method_keys(method)}
    chosen = data.draw(st.lists(st.sampled_from(sorted(keys.keys() - {"method"})), unique=True))
    values = {name: data.draw(values_of(keys[name]), label=name) for name in chosen}
    try:
        recipe = make_recipe({"method": method, **values})
    except UserError:
        return  # of keys that contradict each other
    path = tmp_path_factory.getbasetemp() / "recipe.yaml"
    dump_recipe(recipe, path)
    assert load_recipe(str(path)) == recipe
    assert yaml.safe_load(path.read_text(encoding="utf-8")) == recipe.to_dict()


@pytest.mark.parametrize("name", ["\x85", "a\x85b", "a\u2028b", "Übung 句子", "a: b", "- a"])
def test_a_name_written_and_read_again_is_the_same(name, tmp_path):
    dump_recipe(make_recipe({"name": name}), tmp_path / "recipe.yaml")
    assert load_recipe(str(tmp_path / "recipe.yaml")).name == name
