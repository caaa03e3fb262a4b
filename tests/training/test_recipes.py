"""What the recipes of the zoo hold, and how a recipe is read, overridden, checked and written."""

import math
import re

import pytest

from csezoo.modeling import METHODS
from csezoo.training.errors import UserError
from csezoo.training.recipes import (
    RECIPES,
    coerce,
    describe_keys,
    dump_recipe,
    load_recipe,
    make_recipe,
    method_keys,
    parse_overrides,
    recipe_names,
)

UNSUPERVISED, SUPERVISED = None, ["sent0", "sent1", "hard_neg"]
# name: batch, learning rate, epochs, projection at test, columns. Gao et al. 2021, appendix A; Jiang et al. 2022.
PUBLISHED = {
    "simcse-bert-base-uncased": (64, 3e-5, 1, False, UNSUPERVISED),
    "simcse-bert-large-uncased": (64, 1e-5, 1, False, UNSUPERVISED),
    "simcse-roberta-base": (512, 1e-5, 1, False, UNSUPERVISED),
    "simcse-roberta-large": (512, 3e-5, 1, False, UNSUPERVISED),
    "simcse-sup-bert-base-uncased": (512, 5e-5, 3, True, SUPERVISED),
    "simcse-sup-bert-large-uncased": (512, 1e-5, 3, True, SUPERVISED),
    "simcse-sup-roberta-base": (512, 5e-5, 3, True, SUPERVISED),
    "simcse-sup-roberta-large": (512, 1e-5, 3, True, SUPERVISED),
    "promptbert-bert-base-uncased": (256, 1e-5, 1, False, UNSUPERVISED),
    "promptbert-roberta-base": (256, 1e-5, 1, False, UNSUPERVISED),
}


def refusal(call, *arguments) -> str:
    """The one line a user reads."""
    with pytest.raises(UserError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_zoo_loads_and_configures_its_method(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    prompted = {"prompt_token_ids": [[[0], [1]]] * 2} if recipe.model["pooling"] == "prompt" else {}
    METHODS[recipe.method][0](**recipe.model, **prompted)


@pytest.mark.parametrize("name", PUBLISHED)
def test_hyperparameters_are_the_published_ones(name):
    recipe = load_recipe(name)
    kept = recipe.model["projection_at_test"]
    assert (recipe.batch_size, recipe.learning_rate, recipe.epochs, kept, recipe.text_columns) == PUBLISHED[name]
    assert (recipe.model["temperature"], recipe.model["projection"]) == (0.05, "tanh")
    assert (recipe.max_length, recipe.max_grad_norm, recipe.weight_decay) == (32, 1.0, 0.0)
    assert (recipe.lr_scheduler, recipe.warmup_ratio) == ("linear", 0.0)
    assert (recipe.adam_betas, recipe.adam_epsilon) == ([0.9, 0.999], 1e-8)
    assert recipe.base_model.split("/")[1] in name.replace("promptbert-bert", "bert"), "the backbone the name says"
    assert recipe.dataset_file == ("nli_for_simcse.csv" if recipe.text_columns else "wiki1m_for_simcse.txt")


@pytest.mark.parametrize("name", recipe_names())
def test_every_value_of_a_recipe_says_why_or_where_from(name):
    says_itself = {"method", "base_model", "dataset", "text_columns", "nli_dataset", "nli_columns"}
    for line in (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if (key := re.match(r"(\w+):", line)) and key[1] not in says_itself:
            assert re.search(r" # \S+", line), line


def test_overrides_win_and_become_the_types_their_keys_want():
    arguments = ["--learning_rate", "1e-5", "--seeds", "1", "2", "3", "--streaming", "--max-steps=10"]
    arguments += ["--temperature=0.1", "--text_columns", "a", "b", "--base_revision", "null"]
    recipe = load_recipe("simcse-bert-base-uncased", parse_overrides(arguments))
    assert (recipe.learning_rate, recipe.seeds, recipe.streaming, recipe.max_steps) == (1e-5, [1, 2, 3], True, 10)
    assert (recipe.model["temperature"], recipe.text_columns, recipe.base_revision) == (0.1, ["a", "b"], None)
    assert recipe.batch_size == 64, "what is not overridden stays"


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("1e-5", float, 1e-5),
        ("1e3", int, 1000),
        ("1,2, 3", list[int], [1, 2, 3]),
        ("[1, 2]", list[int], [1, 2]),
        ("7", list[int], [7]),
        ("True", bool, True),
        ("false", bool, False),
        ("null", int | None, None),
        ("None", str | None, None),
        (None, list[str] | None, None),
        (False, str, "no"),  # YAML reads `mixed_precision: no` so
    ],
)
def test_coercion(value, hint, expected):
    result = coerce("key", value, hint)
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("learning_rate", "fast", "float"),
        ("batch_size", 1.5, "int"),
        ("batch_size", True, "int"),
        ("batch_size", None, "int"),
        ("max_steps", [3], "int"),
        ("streaming", "perhaps", "bool"),
        ("seeds", "1,two", "int"),
        ("train_file", ["a"], "str"),
    ],
)
def test_a_wrong_type_names_key_value_and_type(key, value, kind):
    line = refusal(make_recipe, {key: value})
    assert line.startswith(f"{key}: ") and line.endswith(f"is not a {kind}")
    assert repr(value) in line or "'two'" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 0),
        ("eval_batch_size", 0),
        ("epochs", math.nan),
        ("epochs", math.inf),
        ("max_steps", -1),
        ("train_fraction", 1.5),
        ("nli_learning_rate", -1),
        ("endurance", 0),
        ("max_train_sentences", 0),
        ("learning_rate", -1.0),
        ("adam_betas", [0.9]),
        ("adam_betas", [0.9, 1.0]),
        ("lr_scheduler", "triangular"),
    ],
)
def test_a_value_out_of_range_is_named(key, value):
    line = refusal(make_recipe, {key: value})
    assert line.startswith(f"{key}: ") and str(value) in line


def test_what_belongs_together_is_asked_for_together():
    assert "--max_steps" in refusal(make_recipe, {"streaming": True})
    assert refusal(make_recipe, {"seeds": []}) == "seeds: [] must be one or more different numbers from 0 to 2^32 - 1"


def test_an_unknown_name_suggests_the_near_one():
    known = "simcse-bert-base-uncased"
    assert "did you mean learning_rate?" in refusal(load_recipe, known, {"lerning_rate": 1})
    assert "did you mean temperature?" in refusal(load_recipe, known, {"temprature": 1}), "keys of the method too"
    assert "the keys are method, base_model" in refusal(load_recipe, known, {"qqq": 1})
    assert f"did you mean {known}?" in refusal(load_recipe, "simcse-bert-base-uncase")
    assert known in refusal(load_recipe, "qqq")
    assert "'simsce' is none of simcse" in refusal(load_recipe, known, {"method": "simsce"})
    assert "'64' stands alone" in refusal(parse_overrides, ["64"])


def test_a_recipe_may_be_a_yaml_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("batch_size: 8\nlearning_rate: 2e-5\nmixed_precision: no\npooling: mean\n", encoding="utf-8")
    recipe = load_recipe(str(path))
    assert (recipe.name, recipe.batch_size, recipe.model) == ("mine", 8, {"pooling": "mean"})
    assert recipe.learning_rate == 2e-5, "YAML reads 2e-5 as text"
    assert recipe.mixed_precision == "no", "YAML reads a bare no as false"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"batch_size: [1, 2", "not valid YAML"),
        (b"batch_size: \xff", "not valid YAML"),
        (b"- batch_size\n- 8", "a mapping of keys to values, this is a list"),
    ],
)
def test_a_broken_yaml_file_is_named(tmp_path, content, line):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    assert str(path) in (found := refusal(load_recipe, str(path))) and line in found
    assert "no recipe" in refusal(load_recipe, str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_written_and_read_again_is_the_same(name, tmp_path):
    recipe = load_recipe(name, {"seeds": [1, 2], "adam_epsilon": 1e-10, "output_dir": "runs/Überblick"})
    dump_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(str(tmp_path / "recipe.yaml")) == recipe


@pytest.mark.parametrize("method", METHODS)
def test_every_hyperparameter_of_a_method_is_a_key_of_its_recipes(method):
    keys = method_keys(method)
    assert {"pooling", "projection", "temperature", "prompts", "denoise", "mlm_weight"} <= keys.keys()
    assert not {"backbone_config", "prompt_token_ids", "self", "kwargs"} & keys.keys(), "a run fills these in"
    defaults = METHODS[method][0]()
    values = {key: getattr(defaults, key) for key in keys}
    assert make_recipe({"method": method, **values}).model == values
    assert all(f"--{key} ({value})" in describe_keys(method) for key, value in values.items())
