"""Write a finished model as a Hub repository: weights, code, tokenizer, modules, fingerprint, card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..cards.method_texts import ideas
from ..cards.model_card import model_card
from ..files import replace_directory, write_json
from ..pictures.captions import PICTURES
from ..recipes import Recipe
from .fingerprints import write_fingerprint

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
]
TRANSFORMER = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
    "module_output_name": "sentence_embedding",
}


def save_repository(
    directory: Path,
    serving_model: SentenceEncoderModel,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    results: list[dict],
) -> None:
    """Write a complete Hub repository. After an interruption, `directory` is either complete or unchanged.

    Args:
        directory: the repository; replaced if it exists.
        serving_model: a model of `csezoo.modeling`; its code is copied into the repository.
        tokenizer: the serving tokenizer.
        recipe: the recipe of the run, for the card.
        results: what was measured so far, for the card.
    """
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    save_model(partial, serving_model, tokenizer)
    write_fingerprint(partial, type(serving_model))
    save_card(partial, recipe, results)
    replace_directory(partial, directory)


def save_model(directory: Path, serving_model: SentenceEncoderModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write weights, code, tokenizer and modules: a repository without its fingerprint and card."""
    serving_model.save_pretrained(directory)
    save_tokenizer(directory, tokenizer)
    write_sentence_transformers_files(directory, MODULES, TRANSFORMER)


def save_card(
    directory: Path,
    recipe: Recipe,
    results: list[dict],
    summary: list[dict] | None = None,
    runs: Sequence[dict] = (),
) -> None:
    """Write the repository's card, and the pictures that explain its methods.

    Args:
        directory: the repository; the card shows the pictures of the run that are in it.
        recipe, results, summary, runs: as for `model_card`.
    """
    for picture in ideas(recipe):
        shutil.copy(picture, directory)
    pictures = [name for name in PICTURES if (directory / name).is_file()]
    model_card(recipe, results, summary, runs=runs, pictures=pictures).save(directory / "README.md")


def save_tokenizer(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a tokenizer, naming the generic fast class as every version of transformers knows it."""
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {**config, "tokenizer_class": "PreTrainedTokenizerFast"})


def write_sentence_transformers_files(directory: Path, modules: list[dict], transformer: dict) -> None:
    """Write the files that make `SentenceTransformer(directory)` run `modules` one after the other.

    Args:
        directory: the repository.
        modules: content of `modules.json`.
        transformer: configuration of the first module. `TRANSFORMER` returns `pooler_output`, so that no other module
            is needed.
    """
    write_json(directory / "modules.json", modules)
    write_json(directory / "sentence_bert_config.json", transformer)
    similarity = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write_json(directory / "config_sentence_transformers.json", similarity)
