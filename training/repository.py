"""A finished model as a Hub repository: weights, code, tokenizer, sentence-transformers files, fingerprint, card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from .checkpoints import replace_directory
from .model_card import model_card
from .recipes import Recipe
from .verification import write_fingerprint

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
]


def save_repository(directory: Path, serving_model, tokenizer, recipe, results: list[dict]) -> None:
    """Write `directory` whole or not at all.

    Args:
        serving_model: of `csezoo.modeling`; its code travels with it.
        tokenizer: the serving tokenizer.
        recipe: the run's, for the card.
        results: what was measured so far, for the card.
    """
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    serving_model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    _name_generic_tokenizer(partial / "tokenizer_config.json")
    write_sentence_transformers_files(partial)
    write_fingerprint(partial, type(serving_model))
    save_card(partial, recipe, results)
    replace_directory(partial, directory)


def save_card(directory: Path, recipe: Recipe, results: list[dict], summary: list[dict] | None = None) -> None:
    """Write the repository's card."""
    model_card(recipe, results, summary).save(directory / "README.md")


def _name_generic_tokenizer(path: Path) -> None:
    """The generic fast class under the name that every version of transformers knows."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_sentence_transformers_files(directory: Path) -> None:
    """Make `SentenceTransformer(directory, trust_remote_code=True)` give `pooler_output`, with nothing on top."""
    files = {
        "modules.json": MODULES,
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
            "module_output_name": "sentence_embedding",
        },
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
