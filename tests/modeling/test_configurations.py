"""A configuration refuses values that are not allowed or contradict each other, also those of a checkpoint."""

import math

import pytest
from transformers import DebertaV2Config

from csezoo.modeling import METHODS
from csezoo.modeling.contrastive.allowed_values import check_value
from csezoo.modeling.contrastive.keys import declared_keys
from tests.conftest import tiny_config

ALLOWED = [
    (name, key, declared.allowed)
    for name, (config, *_) in METHODS.items()
    for key, declared in declared_keys(config).items()
    if declared.allowed and declared.owner == ("" if name == "simcse" else name)
]


@pytest.mark.parametrize(("name", "key", "allowed"), ALLOWED)
def test_the_error_names_key_and_value_of_a_value_that_is_not_allowed(name, key, allowed):
    wrong = [math.nan, math.inf, -math.inf, 10**12, "1"] if isinstance(allowed, str) else ["other", 7, {}]
    for value in wrong:
        with pytest.raises(ValueError) as error:
            METHODS[name][0](**{key: value})
        assert str(error.value).startswith(
            f"{key}: {value} must be " if isinstance(allowed, str) else f"{key}: {value!r} must be one of "
        )
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "key", "allowed"), ALLOWED)
def test_only_keys_with_default_none_accept_none(name, key, allowed):
    config = METHODS[name][0]
    if getattr(config(), key) is None:
        assert getattr(config(**{key: None}), key) is None
    else:
        with pytest.raises(ValueError, match=f"^{key}: None "):
            config(**{key: None})


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1]", [0, 0.5, 1, True], [-1e-9, 1 + 1e-9, math.nan, math.inf]),
        ("(0, 1)", [1e-300, 1 - 1e-9], [0, 1, -0.0]),
        ("[-1_000, 1_000]", [-1000, 1000], [1001, -(10**400), 10**400]),
    ],
)
def test_an_interval_includes_its_ends_only_with_square_brackets(interval, inside, outside):
    for value in inside:
        check_value("key", value, interval)
    for value in outside:
        with pytest.raises(ValueError, match="^key: "):
            check_value("key", value, interval)


PROMPT = {"pooling": "prompt", "prompts": ["{sentence} {mask}"]}
CONTRADICTIONS = [
    ("simcse", {"pooling": "prompt"}, "give both or neither"),
    ("simcse", {"prompts": ["{sentence} {mask}"]}, "give both or neither"),
    ("simcse", {**PROMPT, "prompts": ["{mask} {sentence}"]}, "must have {mask} after {sentence}"),
    ("simcse", {**PROMPT, "prompts": ["a {sentence}"]}, "must contain {sentence} and {mask} once each"),
    ("simcse", {"pooling": "wk", "backbone_config": tiny_config("bert", num_hidden_layers=1)}, "wk compares layers"),
    ("simcse", {"projection": "mlm_transform"}, "is used in training and at test; set projection_at_test: true"),
    ("simcse", {"denoise": "train"}, "denoise: train needs pooling: prompt"),
    (
        "simcse",
        {**PROMPT, "denoise": "train", "backbone_config": DebertaV2Config(position_biased_input=False)},
        "deberta-v2 counts positions itself; set denoise: none",
    ),
    ("simcse", {"matryoshka_dims": [32]}, "matryoshka_dims: 32 must be at least 1 and at most 31"),
    ("simcse", {"matryoshka_dims": [4, 4]}, "matryoshka_dims: [4, 4] must be different numbers"),
    ("simcse", {"matryoshka_dims": [4], "matryoshka_weights": [1.0, 1.0]}, "one number for each of matryoshka_dims"),
    ("simcse", {"matryoshka_weights": [1.0]}, "one number for each of matryoshka_dims"),
    ("contrastive_tension", {"lora_rank": 4}, "trains two encoders, LoRA only one; set lora_rank: 0"),
    ("diffaug", {**PROMPT, "denoise": "always"}, "needs denoise_length_offset: 0"),
    ("diffcse", {"prediction": "masked_lm", "edit": "insert"}, "prediction: masked_lm needs edit: replace"),
    ("diffcse", {"edited_view": "positive", "edit": "all"}, "set edit: replace, insert or delete"),
    ("diffcse", {"edited_view": "positive", "predicted_sentence": "next"}, "set predicted_sentence: same"),
    ("diffcse", {"projection": "gelu"}, "set condition_on: pooled"),
    ("isbert", {"kernel_sizes": [1, 2]}, "must be odd numbers"),
    ("isbert", {"kernel_sizes": []}, "kernel_sizes"),
    ("isbert", {"hard_negative_weight": 1.0}, "no hard negatives"),
    ("l2pcsr", {"weakened_layers": 5}, "weakened_layers: 5 must be at most 4"),
    ("l2pcsr", {"token_mask": False, "feature_mask": False}, "if both are false, nothing is weakened"),
    ("prdsimcse", {"denominator": "own", "hard_negative_weight": 1.0}, "only works with denominator: batch"),
    ("sgopt", {"last_view_layer": 4}, "a range of layers between 0 and 3"),
    ("sgopt", {"first_view_layer": 3, "last_view_layer": 2}, "3, 2 must be a range of layers between 0 and"),
    ("sgopt", {"hard_negative_weight": -1.0}, "hard_negative_weight: sgopt has no hard negatives; set it to 0"),
    ("sgopt", {"lora_rank": 2}, "with lora_rank the encoder's weights stay equal to the twin's; set it"),
]


@pytest.mark.parametrize(("name", "keys", "line"), CONTRADICTIONS)
def test_the_error_says_which_values_contradict_each_other(name, keys, line):
    with pytest.raises(ValueError) as error:
        METHODS[name][0](**{"backbone_config": tiny_config("bert"), **keys})
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("keys", [{"pooling": "prompt"}, {"temperature": 0.0}, {"projection": "linear"}])
def test_options_of_from_pretrained_are_checked_too(keys, tmp_path):
    _, serving, training = METHODS["simcse"]
    serving(METHODS["simcse"][0](backbone_config=tiny_config("bert"))).save_pretrained(tmp_path)
    for load in (serving, training):
        with pytest.raises(ValueError, match=next(iter(keys))):
            load.from_pretrained(tmp_path, **keys)


PAIRS = {"first_view": "none", "in_view_negatives": False}
COLUMNS = [  # of how many columns, which ones the views read; or the error
    ("simcse", {}, {1: [0, 0], 2: [0, 1], 3: [0, 1, 2]}),
    ("consert", PAIRS, {3: [0, 1, 2]}),
    ("consert", PAIRS | {"in_view_negatives": True}, {1: [0, 0], 2: [0, 1], 3: "consert needs one text column"}),
    ("consert", PAIRS | {"second_view": "token_cutoff"}, {2: [0, 1], 3: "consert needs one text column"}),
    ("contrastive_tension", {}, {1: [0, 0], 2: [0, 1], 3: "one text column or two, not 3"}),
    ("isbert", {}, {1: [0], 2: "one text column, not 2"}),
    ("sgopt", {}, {1: [0], 2: [0, 1], 3: "not 3"}),
    ("sgopt", {"guide": "self"}, {1: [0, 0]}),
    ("diffcse", {"predicted_sentence": "next"}, {2: [0, 0, 1], 1: "(a sentence and the one after it), not 1"}),
    ("diffcse", {"edited_view": "negative"}, {1: [0, 0], 3: "give one or two text columns, not 3"}),
]


@pytest.mark.parametrize(("name", "keys", "columns"), COLUMNS)
def test_a_method_says_which_columns_its_views_read(name, keys, columns):
    config = METHODS[name][0](**keys)
    for number, expected in columns.items():
        if isinstance(expected, list):
            assert config.view_columns(number) == expected
        else:
            with pytest.raises(ValueError) as error:
                config.view_columns(number)
            assert expected in str(error.value)


@pytest.mark.parametrize(
    ("name", "keys", "reason"),
    [
        ("consert", {}, "cut-offs"),
        ("consert", {"first_view": "none"}, None),
        ("contrastive_tension", {}, "two encoders"),
        ("simcse", {"mlm_weight": 0.1}, "masked language modelling"),
    ],
)
def test_the_reason_against_mini_batches_is_that_of_the_setting(name, keys, reason):
    given = METHODS[name][0](**keys).reason_for_whole_batch
    assert (given is None) if reason is None else reason in given
