"""The section of a card on how to load the model: without trust, unless the model has no plain form."""

import pytest

from csezoo.training.cards.model_card import recipe_card
from csezoo.training.cards.released_card import released_card
from csezoo.training.recipes import load_recipe
from csezoo.training.recipes.released import kinds, released

RECIPES = {
    "simcse-bert-base-uncased": True,
    "promptbert-bert-base-uncased": True,
    "promptbert-sup-roberta-base": False,
    "flow-bert-base-uncased": False,
    "diffaug-roberta-base-sup": False,
}
RELEASED = {"voidism/diffcse-bert-base-uncased-sts": True, "Tianduo/diffaug-sup-bert-base-uncased": False}


def assert_says(text: str, path: str, plain: bool) -> None:
    assert (f'SentenceTransformer("{path}")\n' in text) == plain
    assert (f'SentenceTransformer("{path}", trust_remote_code=True)\n' in text) != plain
    assert ("a plain encoder with the modules of sentence-transformers, 3.0 or newer:" in text) == plain
    assert ("Only its own code can serve this model: " in text) != plain
    assert f'AutoModel.from_pretrained("{path}", trust_remote_code=True)\n' in text
    assert "peft" not in text


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe(name):
    text = recipe_card(load_recipe(name)).text
    assert_says(text, f"runs/{name}/best", RECIPES[name])


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_checkpoint(name):
    entry = released()[name]
    assert_says(released_card(name, kinds()[entry.kind], entry).text, name.rpartition("/")[2], RELEASED[name])
