"""Write a finished model as a Hub repository: weights, code, tokenizer, modules, fingerprint, card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from csezoo.modeling.contrastive.published import publish_model
from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel

from ..cards.method_texts import ideas, text_names
from ..cards.model_card import model_card
from ..files import replace_directory
from ..pictures.captions import PICTURES
from ..recipes import Recipe
from .fingerprints import add_checksums


def save_repository(
    directory: Path, serving_model: SentenceEncoderModel, tokenizer: PreTrainedTokenizerBase, recipe: Recipe
) -> None:
    """Write a complete Hub repository, with a card that has no results yet.

    After an interruption, `directory` is either complete or unchanged.
    """
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    serving_model.tokenizer = tokenizer
    publish_model(serving_model).save_pretrained(partial)
    add_checksums(partial)
    save_card(partial, recipe, {})
    replace_directory(partial, directory)


def save_card(directory: Path, recipe: Recipe, report: dict[str, Any], *, adapter: str | None = None) -> None:
    """Write a repository's card, with the pictures of the run that are in it and those that explain its methods."""
    for picture in ideas(text_names(recipe)):
        shutil.copy(picture, directory)
    pictures = [name for name in PICTURES if (directory / name).is_file()]
    model_card(recipe, report, pictures=pictures, adapter=adapter).save(directory / "README.md")
