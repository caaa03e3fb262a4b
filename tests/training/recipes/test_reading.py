"""How a recipe is found, read, overridden and converted, and what a mistake in it is answered with."""

import pytest

from csezoo.training.recipes import dump_recipe, load_recipe, make_recipe, parse_overrides
from csezoo.training.recipes.reading import as_word, coerce, keys_without_effect
from csezoo.training.train import main
from tests.refusals import refusal

KNOWN = "simcse-bert-base-uncased"


def test_overrides_win_and_become_the_types_of_their_keys():
    arguments = ["--learning_rate", "1e-5", "--seeds", "1", "2", "3", "--streaming", "--max-steps=10"]
    arguments += ["--temperature=0.1", "--text_columns", "a", "b", "--base_revision", "null"]
    recipe = load_recipe(KNOWN, parse_overrides(arguments))
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
        ("a {sentence}, [b] {mask}", list[str], ["a {sentence}, [b] {mask}"]),
        (as_word(["a, {sentence} {mask}", "[b]"]), list[str], ["a, {sentence} {mask}", "[b]"]),
        ('["{sentence}" means {mask}', list[str], ['["{sentence}" means {mask}']),
        (as_word([0.9, 0.98]), list[float], [0.9, 0.98]),
        ("True", bool, True),
        ("false", bool, False),
        ("null", int | None, None),
        ("None", str | None, None),
        (None, list[str] | None, None),
        (False, str, "no"),  # YAML reads `mixed_precision: no` so
    ],
)
def test_a_value_becomes_the_type_of_its_key(value, hint, expected):
    result = coerce("key", value, hint)
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("learning_rate", "fast", "learning_rate: 'fast' is not a number"),
        ("batch_size", 1.5, "batch_size: 1.5 is not a whole number"),
        ("batch_size", True, "batch_size: True is not a whole number"),
        ("batch_size", None, "batch_size: None is not a whole number"),
        ("max_steps", [3], "max_steps: [3] is not a whole number"),
        ("streaming", "perhaps", "streaming: 'perhaps' is not true or false"),
        ("seeds", "1,two", "seeds: 'two' is not a whole number"),
        ("train_file", ["a"], "train_file: ['a'] is not text"),
        ("temperature", "hot", "temperature: 'hot' is not a number"),
    ],
)
def test_a_value_of_another_type_is_refused_with_key_value_and_type(key, value, line):
    assert refusal(make_recipe, {key: value}) == line


@pytest.mark.parametrize(
    ("call", "arguments", "line"),
    [
        (load_recipe, (KNOWN, {"lerning_rate": 1}), "unknown key 'lerning_rate': did you mean learning_rate?"),
        (load_recipe, (KNOWN, {"temprature": 1}), "unknown key 'temprature': did you mean temperature?"),
        (load_recipe, (KNOWN, {"qqq": 1}), "csezoo train --help and RECIPE --help list the keys"),
        (make_recipe, ({64: 1},), "unknown key 64"),
        (load_recipe, ("simcse-bert-base-uncase",), f"did you mean {KNOWN}?"),
        (load_recipe, ("qqq",), "no recipe 'qqq': csezoo recipes lists them"),
        (load_recipe, ("absent.yaml",), "no recipe 'absent.yaml'"),
        (load_recipe, (KNOWN, {"method": "simsce"}), "method: 'simsce' must be one of simcse"),
        (parse_overrides, (["64"],), "unexpected argument '64': after the recipe, give --key value"),
    ],
)
def test_an_unknown_name_is_answered_with_the_way_out(call, arguments, line):
    assert line in refusal(call, *arguments)


def test_a_recipe_may_be_a_yaml_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("batch_size: 8\nlearning_rate: 2e-5\nmixed_precision: no\npooling: mean\n", encoding="utf-8")
    recipe = load_recipe(str(path))
    assert (recipe.name, recipe.recipe, recipe.batch_size) == ("mine", "mine.yaml", 8)
    assert recipe.model == {"pooling": "mean"}
    assert recipe.learning_rate == 2e-5, "YAML reads 2e-5 as text"
    assert recipe.mixed_precision == "no", "YAML reads a bare no as false"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"batch_size: [1, 2", "not valid YAML"),
        (b"batch_size: \xff", "not valid YAML"),
        (b"base_revision: 2024-13-45", "not valid YAML: month must be in 1..12"),
        (b"seeds: " + b"[" * 10_000, "not valid YAML"),
        (b"- batch_size\n- 8", "expected a mapping of keys to values, got list"),
        (b"batch_size: 8\nepochs: 1\nbatch_size: 9", "'batch_size' is given twice"),
        (b"null: 8", "the key None is not text"),
        (b"1: 8", "the key 1 is not text"),
        (b'name: "a\\0b"', "name: 'a\\x00b' is not text"),
        (b"temprature: 1", "unknown key 'temprature': did you mean temperature?"),
    ],
)
def test_a_broken_yaml_file_is_named(tmp_path, content, line):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    found = refusal(load_recipe, str(path))
    assert line in found and str(path) in found


def test_yaml_defaults_may_be_overridden(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("<<: &defaults {batch_size: 8, epochs: 2}\nbatch_size: 9\n", encoding="utf-8")
    assert (load_recipe(str(path)).batch_size, load_recipe(str(path)).epochs) == (9, 2)


@pytest.mark.parametrize("keys", [{}, {"nli_classes": 3}, {"nli_columns": "a,b,c"}])
def test_labelled_pairs_that_no_stage_uses_are_refused(keys):
    assert "give --nli_steps (updates of a first stage) or --nli_weight" in refusal(
        load_recipe, KNOWN, {"nli_file": "pairs.csv", **keys}
    )
    assert load_recipe(KNOWN, {"nli_file": "pairs.csv", "nli_steps": 0, **keys}).nli_steps == 0, "an ablation"


def test_labelled_pairs_that_are_given_beside_all_keys_of_a_run_are_refused_if_nothing_uses_them(tmp_path):
    dump_recipe(load_recipe(KNOWN), tmp_path / "recipe.yaml")
    assert "nothing uses these pairs" in refusal(load_recipe, str(tmp_path / "recipe.yaml"), {"nli_file": "pairs.csv"})


@pytest.mark.parametrize(
    ("key", "value", "other"),
    [
        ("whitening_updates", 5, {"whitening": 8}),
        ("flow_start", "random", {"flow": True}),
        ("shuffle_buffer", 10, {"streaming": True, "max_steps": 1}),
        ("nli_batch_size", 4, {"nli_file": "pairs.csv", "nli_steps": 1}),
        ("nli_batch_size", 4, {"nli_dataset": "owner/pairs", "nli_steps": 1}),
        ("nli_learning_rate", 1e-3, {"nli_file": "pairs.csv", "nli_steps": 1}),
        ("rank_temperature", 0.1, {"teachers": "base", "rank_weight": 1}),
        ("mlm_probability", 0.3, {"mlm_weight": 0.1}),
        ("lora_dropout", 0.1, {"lora_rank": 8}),
        ("rmsprop_alpha", 0.5, {"optimizer": "rmsprop"}),
        ("fraction_seed", 3, {"train_fraction": 0.5}),
    ],
)
def test_a_key_has_no_effect_without_the_one_that_it_depends_on(key, value, other):
    assert list(keys_without_effect(load_recipe(KNOWN, {key: value}), [key])) == [key]
    assert keys_without_effect(load_recipe(KNOWN, {key: value, **other}), [key, *other]) == {}


def test_a_key_has_no_effect_with_another_optimizer_or_projection():
    recipe = load_recipe(KNOWN, {"optimizer": "rmsprop", "projection": "none"})
    assert [*keys_without_effect(recipe, ["adam_betas", "projection_size"])] == ["projection_size", "adam_betas"]


def test_epochs_replace_the_updates_of_a_recipe():
    assert load_recipe("adapt", {"epochs": 1}).max_steps is None
    assert load_recipe("adapt", {"epochs": 1, "max_steps": 5}).max_steps == 5
    assert load_recipe("adapt", {"batch_size": 8}).max_steps == 100


def test_epochs_have_no_effect_beside_a_number_of_updates():
    """A recipe that trains nothing is not made to train."""
    for recipe in (load_recipe(KNOWN, {"max_steps": 5}), load_recipe("whitening-bert-base-uncased", {"epochs": 1})):
        assert keys_without_effect(recipe, ["epochs"]) == {"epochs": "max_steps: null"}
    assert keys_without_effect(load_recipe(KNOWN), ["epochs"]) == {}


def test_training_names_a_key_without_effect(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([KNOWN, "--base_model", str(tmp_path / "none"), "--train_file", __file__, "--whitening_power", "0.5"])
    assert "whitening_power has no effect without whitening\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x" * 5000, "9" * 5000])
@pytest.mark.parametrize("key", ["batch_size", "method", "learning_rate", "seeds", "temperature", "lr_scheduler"])
def test_the_error_of_a_long_value_is_short(key, name):
    assert len(refusal(load_recipe, KNOWN, {key: name})) < 250
    assert len(refusal(load_recipe, KNOWN, {key + name: 1})) < 250
