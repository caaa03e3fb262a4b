"""The section of a card on how to load the model offers what that model has."""

import pytest

from csezoo.training.cards.model_card import recipe_card
from csezoo.training.cards.released_card import released_card
from csezoo.training.recipes import load_recipe
from csezoo.training.recipes.released import kinds, released

PLAIN, ONNX = "`csezoo export` writes a repository without custom code", "`csezoo export --onnx` writes"


@pytest.mark.parametrize("name", ["simcse-bert-base-uncased", "promptbert-sup-roberta-base", "flow-bert-base-uncased"])
def test_a_recipe(name):
    text = recipe_card(load_recipe(name), ideas_at="../ideas/").text
    assert (PLAIN in text, ONNX in text) == (name.startswith("simcse"), not name.startswith("simcse"))


@pytest.mark.parametrize("name", ["diffaug-roberta-base-sup", "simcse-roberta-base"])
def test_only_diffaug_needs_another_library(name):
    text = recipe_card(load_recipe(name), ideas_at="../ideas/").text
    assert ("```\n\nIts code needs peft: `pip install peft`.\n\nThe tokenizer" in text) == name.startswith("diffaug")


@pytest.mark.parametrize("name", ["voidism/diffcse-bert-base-uncased-sts", "Tianduo/diffaug-sup-bert-base-uncased"])
def test_a_released_checkpoint(name):
    entry = released()[name]
    text = released_card(name, kinds()[entry.kind], entry).text
    assert (PLAIN in text, ONNX in text) == (entry.kind == "diffcse", entry.kind == "diffaug")
