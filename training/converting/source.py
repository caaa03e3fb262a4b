"""Find the files of a checkpoint, in a directory or on the Hub."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase

from ..errors import UserError, library_errors, one_line, quoted
from ..files import read_json
from ..hub import listed_modules, local_directory, sha256, stated_in_card
from ..loading.backbones import ABOUT_THE_FILE
from ..loading.tokenizers import load_tokenizer
from .pickles import read_pickle

FAMILIES = ("bert", "roberta")
SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
# ConSERT's copy of sentence-transformers 0.3.9 adds 3 to the limit before it cuts: two special tokens and one more.
ADDED_TO_LIMIT = 3


@dataclass
class Source:
    """A checkpoint as it was found."""

    name: str  # Hub id, or the name of the directory
    encoder: Path  # the directory of configuration, tokenizer and weights
    weights: Path  # the file with the weights
    revision: str | None  # the commit that was read; None for a directory
    license: str | None = None  # what the repository's card states
    # pooling, max_length: what a sentence-transformers directory states
    pooling: str | None = None
    max_length: int | None = None
    notes: list[str] = field(default_factory=list)  # what a user should know about the files

    def __str__(self) -> str:
        at = f" at {self.revision}" if self.revision else ""
        return f"{self.weights.name} of {self.name}{at}"

    def receipt(self) -> dict[str, str | None]:
        """Return what a conversion was made from."""
        return {
            "source": self.name,
            "revision": self.revision,
            "file": self.weights.name,
            "sha256": sha256(self.weights),
        }


def find_source(model: str, revision: str | None, *, modules: bool, authors_pickle: bool) -> Source:
    """Find a checkpoint's files, and download those that are needed.

    Safetensors are preferred to a pickle.

    Args:
        modules: whether this is a directory of sentence-transformers 0.3.9, with a Transformer and a Pooling.
        authors_pickle: whether the authors are known to have released a pickle alone.
    """
    top = local_directory(model, revision, only=["*.json", "*.txt", "README.md", f"*{SAFETENSORS}"])
    commit = None if os.path.isdir(model) else top.name
    settings = _modules(top) if modules else {"folder": ""}
    encoder = top / settings.pop("folder")
    weights = encoder / SAFETENSORS
    if not weights.is_file():
        if commit:
            local_directory(model, commit, only=[f"*{PICKLE}"])
        weights = encoder / PICKLE
    missing = [name for name in ("config.json", weights.name) if not (encoder / name).is_file()]
    if missing:
        way_out = "give a directory or Hub id of a checkpoint"
        if (encoder / f"{SAFETENSORS}.index.json").is_file():
            way_out = f"its weights are in several files, join them in one {SAFETENSORS}"
        elif not modules and (top / "modules.json").is_file():
            way_out = "it is a directory of sentence-transformers, is it another kind (--as)?"
        raise UserError(f"{model} has no {' and no '.join(missing)}; {way_out}")
    notes = []
    if revision and revision.startswith("refs/pr/"):
        notes.append(f"{revision} is a pull request: anybody can open one, so the weights may be a third party's")
    if authors_pickle and weights.name == SAFETENSORS:
        notes.append(f"the authors released {PICKLE}; {SAFETENSORS} was added later, by them or by a third party")
    elif weights.name == SAFETENSORS and (encoder / PICKLE).is_file():
        notes.append(f"there is a {PICKLE} too, which was not read")
    name = model if commit else top.resolve().name
    return Source(name, encoder, weights, commit, stated_in_card(str(top)).get("license"), **settings, notes=notes)


def _modules(top: Path) -> dict[str, Any]:
    """Return folder, pooling and limit of a directory of sentence-transformers."""
    if not (top / "modules.json").is_file():
        raise UserError(f"{top} has no modules.json; is it another kind (--as)?")
    modules = listed_modules(str(top))
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["BERT", "Pooling"], ["RoBERTa", "Pooling"]):
        raise UserError(f"modules.json has {', '.join(kinds)}; expected Transformer and Pooling")
    folder, pooling = (module["path"] for module in modules)
    modes = read_json(top / pooling / "config.json")
    names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "mean_last_2_tokens": "last2_mean"}
    chosen = [key for key, value in modes.items() if key.startswith("pooling_mode_") and value]
    if len(chosen) != 1 or chosen[0].removeprefix("pooling_mode_") not in names:
        raise UserError(
            f"{pooling}/config.json pools by {', '.join(chosen) or 'nothing'}; expected one mode of the zoo"
        )
    limit = read_json(top / folder / "sentence_bert_config.json").get("max_seq_length")
    if type(limit) is not int or limit < 1:  # not `isinstance`: true is no number
        raise UserError(
            f"{folder}/sentence_bert_config.json: max_seq_length must be a whole number above 0, got {quoted(limit)}"
        )
    mode = names[chosen[0].removeprefix("pooling_mode_")]
    return {"folder": folder, "pooling": mode, "max_length": limit + ADDED_TO_LIMIT}


def read_backbone_config(source: Source) -> tuple[PretrainedConfig, list[str]]:
    """Return the configuration of the encoder without keys that are not its own, and the names of those."""
    raw = read_json(source.encoder / "config.json")
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise UserError(f"{source.name}: model_type is {family!r}; convert reads {' and '.join(FAMILIES)}")
    if raw.get("position_embedding_type", "absolute") != "absolute":
        kind = raw["position_embedding_type"]
        raise UserError(f"{source.name}: position_embedding_type must be absolute, got {kind!r}")
    known = AutoConfig.for_model(family).to_dict().keys() - ABOUT_THE_FILE
    with library_errors(f"{source.name}: its config.json is not valid ({{error}})"):
        config = AutoConfig.for_model(**{key: value for key, value in raw.items() if key in known})
    config.output_hidden_states = False
    return config, sorted(raw.keys() - known)


def read_tokenizer(source: Source, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer. It must have as many tokens as the embedding has rows, as in all released models."""
    files = [name for name in ("tokenizer.json", "vocab.txt", "vocab.json") if (source.encoder / name).is_file()]
    if not files:
        raise UserError(f"{source.name} has no tokenizer.json, vocab.txt or vocab.json; put the tokenizer beside it")
    if files == ["vocab.txt"] and not (source.encoder / "tokenizer_config.json").is_file():
        # The tokenizer's class lower-cases by default, as bert-base-uncased. That is wrong for a cased vocabulary.
        pieces = (source.encoder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        if any(piece != piece.lower() for piece in pieces if not piece.startswith("[")):
            raise UserError(
                f"{source.name}: vocab.txt has upper case and nothing says whether the tokenizer lower-cases; put a "
                "tokenizer_config.json with do_lower_case beside it"
            )
        source.notes.append("there is a vocabulary without settings, and it has no upper case: texts are lower-cased")
    tokenizer = load_tokenizer(str(source.encoder))
    if len(tokenizer) != config.vocab_size:
        raise UserError(
            f"{source.name}: its vocabulary has {len(tokenizer):,} tokens and its embedding {config.vocab_size:,} rows"
            "; put the tokenizer that belongs to the weights beside them"
        )
    return tokenizer


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file or a pickle, mapped from the file."""
    if file.name == PICKLE:
        return read_pickle(file)
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file.name} is damaged ({one_line(error)})") from error
