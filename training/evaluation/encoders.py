"""Load any model as an encoder: of the zoo, of transformers, of sentence-transformers, or a file of word vectors."""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from csezoo.modeling.contrastive.backbones import longest_input
from csezoo.modeling.contrastive.configuration import PLAIN_POOLINGS
from csezoo.modeling.contrastive.published import load_published, published_class
from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel
from csezoo.modeling.contrastive.weight_files import weight_files
from csezoo.modeling.serving.configuration_csezoo import CsezooConfig
from csezoo.modeling.serving.encoding_csezoo import EncodesTexts
from csezoo.modeling.serving.modeling_csezoo import CsezooModel

from ..environment import default_device, device_name
from ..errors import UserError, library_errors
from ..files import read_json
from ..hub import is_inside, listed_modules, refuse_run_or_adapter, repository_file
from ..loading.backbones import PADDING_MOVES, encoder_around, load_backbone, padding_moves, run_once
from ..loading.sizes import refuse_oversized
from ..loading.templates import serving_tokenizer, template_token_ids
from ..loading.tokenizers import UNKNOWN, load_tokenizer, reading_tokenizer, refuse_missing_embeddings
from ..recipes import Recipe, load_recipe
from .sentence_vectors import CountingEncoder
from .word_vectors import BAG_OF_WORDS, load_bag_of_words, load_word_vectors

ROUTER = "router_config.json"  # of a module of sentence-transformers that has modules in folders of its own
# The files, beside the weights, on which a model's vectors depend.
DECISIVE: tuple[str, ...] = ("config.json", "tokenizer.json", "tokenizer_config.json")
DECISIVE += ("vocab.txt", "vocab.json", "merges.txt")
DECISIVE += ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", ROUTER)

logger = logging.getLogger(__name__)


def load_encoder(
    model: str,
    *,
    pooling: str | None = None,
    batch_size: int = 128,
    dtype: str = "float32",
    progress: bool = False,
    device: torch.device | None = None,
) -> tuple[CountingEncoder, dict[str, Any]]:
    """Load a model as a function from texts to vectors, with its receipt.

    Args:
        model: directory or Hub id; a file of word vectors, see `load_word_vectors`; or `bag-of-words`.
        pooling: for a plain transformers encoder; other models define their pooling themselves.
        batch_size: maximum number of texts per forward pass.
        device: of the model, by default the GPU if there is one.

    Raises:
        UserError: the model cannot be loaded, its pooling is missing, or one of the options is not for this model.
    """
    if _has_word_vectors(model):
        _refuse_pooling(model, pooling)
        if dtype != "float32":
            raise UserError(f"--dtype {dtype}: {model} has word vectors, which are float32; omit the option")
        return load_bag_of_words() if model == BAG_OF_WORDS else load_word_vectors(model)
    device = device or default_device()
    encoder: EncodesTexts
    if is_published(model):
        _refuse_pooling(model, pooling)
        kind, published = "csezoo", load_checkpoint(model, dtype)
        encoder, tokenizer = published, checkpoint_tokenizer(published, model)
        pooling = str(published.config.csezoo["pooling"])
    elif repository_file(model, "modules.json"):
        _refuse_pooling(model, pooling)
        return _sentence_transformer(model, batch_size, dtype, progress, device)
    elif pooling is None:
        raise UserError(
            f"{model} is a bare encoder, which needs a pooling: give --pooling with one of {', '.join(PLAIN_POOLINGS)}"
        )
    else:
        kind, (encoder, tokenizer) = "transformers", plain_encoder(model, pooling, dtype)
    encoder.to(device).eval()  # type: ignore[arg-type]  # a decorator hides `self`
    run_once(model, lambda: encoder.encode(UNKNOWN, tokenizer))
    if isinstance(encoder, SentenceEncoderModel) and batch_size > 1:  # of a plain encoder
        batch_size = _without_padding(model, encoder, tokenizer, batch_size)
    encode = partial(encoder.encode, tokenizer=tokenizer, batch_size=batch_size, show_progress_bar=progress)
    roles = {role: partial(encode, prompt_name=role) for role in ("query", "document")}
    receipt = _encoder_receipt(model, pooling, dtype, batch_size, kind, device)
    count = partial(_count_tokens, tokenizer)
    return CountingEncoder(encode, count, roles, encoder.similarity_fn_name), receipt


def load_checkpoint(model: str, dtype: str = "float32") -> CsezooModel:
    """Load a published repository with the installed code; code in the repository is not run."""
    with library_errors(f"{model} could not be loaded ({{error}})"):
        config = CsezooConfig.from_pretrained(model)
        refuse_oversized(model, config.to_dict(), lambda: published_class(model)(config))
        return load_published(model, dtype=dtype)


def checkpoint_tokenizer(encoder: CsezooModel, model: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a published repository that was loaded before."""
    if encoder.tokenizer is None:
        raise UserError(f"{model}: it has no tokenizer; put its tokenizer.json beside the weights")
    with reading_tokenizer(model):
        encoder.tokenizer(UNKNOWN)
    refuse_missing_embeddings(model, encoder.tokenizer, encoder.config.vocab_size)
    return encoder.tokenizer


def plain_encoder(
    model: str, pooling: str, dtype: str = "float32", revision: str = "main"
) -> tuple[SentenceEncoderModel, PreTrainedTokenizerFast]:
    """Load a transformers encoder as it is: its backbone with a pooling, and its tokenizer."""
    if pooling not in PLAIN_POOLINGS:
        raise UserError(f"pooling: {pooling!r} must be one of {', '.join(PLAIN_POOLINGS)}")
    backbone = load_backbone(model, dtype=dtype, revision=revision)
    tokenizer = load_tokenizer(model, revision=revision)
    refuse_missing_embeddings(model, tokenizer, backbone.config.vocab_size)
    encoder = encoder_around(backbone, pooling=pooling)
    with reading_tokenizer(model):
        ends = template_token_ids(tokenizer)
        return encoder, serving_tokenizer(tokenizer, ends, max_length=longest_input(backbone))


def _without_padding(
    model: str, encoder: SentenceEncoderModel, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> int:
    """Return the batch size, or 1 for an encoder whose scores would depend on the batch."""
    measured = encoder if encoder.dtype == torch.float32 else copy.deepcopy(encoder).float()
    moved = padding_moves(measured, tokenizer)
    if moved <= PADDING_MOVES:
        return batch_size
    logger.warning(
        "%s changes the vectors of a sentence when it is padded (by %.1g of their size), so it reads one sentence at "
        "a time",
        model,
        moved,
    )
    return 1


def _count_tokens(tokenizer: Any, texts: list[str]) -> int:
    if isinstance(tokenizer, Tokenizer):  # of a static model of sentence-transformers, which reads no special tokens
        return sum(map(len, tokenizer.encode_batch(texts, add_special_tokens=False)))
    if not callable(tokenizer):  # of word vectors in sentence-transformers
        return sum(len(tokenizer.tokenize(text)) for text in texts)
    return sum(map(len, tokenizer(texts, truncation=True)["input_ids"]))


def _sentence_transformer(
    model: str, batch_size: int, dtype: str, progress: bool, device: torch.device
) -> tuple[CountingEncoder, dict[str, Any]]:
    try:
        from sentence_transformers import SentenceTransformer, __version__
    except ImportError:
        raise UserError(f'{model} needs sentence-transformers: pip install "sentence-transformers>=6"') from None
    if int(__version__.split(".")[0]) < 6:  # older versions run the code of a local directory
        raise UserError(f'{model} needs a newer sentence-transformers: pip install "sentence-transformers>=6"')
    modules = listed_modules(model)
    folders = _module_folders(model, modules)
    # `use_safetensors` below keeps transformers from reading a pickle, but no other module.
    others = [module for module in modules if not str(module.get("type")).endswith(".Transformer")]
    for folder in ("", *folders) if any(not module["path"] for module in others) else folders:
        pickle = Path(folder, "pytorch_model.bin").as_posix()
        if repository_file(model, pickle) and not repository_file(model, Path(folder, "model.safetensors").as_posix()):
            raise UserError(f"{model}: {pickle} is a pickle, which is never read; save the module as safetensors")
    with library_errors(f"{model} could not be loaded ({{error}})"):
        for folder in ("", *folders):
            weight_files(model, folder)
            if config := repository_file(model, Path(folder, "config.json").as_posix()):
                _refuse_oversized_module(model, config)
        options = {"dtype": dtype, "use_safetensors": True}
        encoder = SentenceTransformer(model, device=str(device), model_kwargs=options, trust_remote_code=False)

    encode, query, document = (
        partial(of_role, batch_size=batch_size, show_progress_bar=progress)
        for of_role in (encoder.encode, encoder.encode_query, encoder.encode_document)
    )
    receipt = _encoder_receipt(model, "its own", dtype, batch_size, "sentence-transformers", device)
    receipt["sentence_transformers"] = __version__
    count, roles = partial(_count_tokens, encoder.tokenizer), {"query": query, "document": document}
    return CountingEncoder(encode, count, roles, str(encoder.similarity_fn_name)), receipt


def _refuse_oversized_module(model: str, config: Path) -> None:
    content = read_json(config)
    if "model_type" in content:
        loaded = AutoConfig.from_pretrained(config.parent, trust_remote_code=False)
        refuse_oversized(model, content, lambda: AutoModel.from_config(loaded, trust_remote_code=False))
    elif "in_features" in content:
        refuse_oversized(model, content, lambda: torch.nn.Linear(content["in_features"], content["out_features"]))


def _encoder_receipt(
    model: str, pooling: str, dtype: str, batch_size: int, kind: str, device: torch.device
) -> dict[str, Any]:
    settings = {"pooling": pooling, "dtype": dtype, "batch_size": batch_size, "kind": kind}
    return {**settings, "device": device_name(device), **model_receipt(model)}


def model_receipt(model: str) -> dict[str, str | None]:
    """Return the part of a receipt that identifies the model by its files, wherever they are stored.

    Returns:
        `model_sha256`, a checksum of the names and contents of the weights, configuration and tokenizer files, and
        `model_revision`, the commit of a Hub repository (None for a directory).
    """
    folders = _module_folders(model, listed_modules(model))
    names = [Path(folder, name).as_posix() for folder in ("", *folders) for name in DECISIVE]
    files = [file for name in names if (file := repository_file(model, name)) is not None]
    directory = files[0].parent
    for folder in ("", *folders):
        loaded = (directory / name for name in weight_files(directory, folder))
        files += sorted({*(directory / folder).glob("*.safetensors"), *(file for file in loaded if file.is_file())})
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(directory).as_posix()} {file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return {"model_sha256": digest.hexdigest(), "model_revision": None if Path(model).is_dir() else directory.name}


def recipe_of(model: str) -> Recipe | None:
    """Return the recipe that made a model of the zoo, or None if it is not known.

    It is in the published repository, or in the directory of the run that has the model in its `best/`.
    """
    if _has_word_vectors(model) or not is_published(model):
        return None
    run = Path(model).parent
    above = (run, run.parent) if run.name.startswith("seed-") else (run,)
    files = [directory / "recipe.yaml" for directory in above if Path(model).name == "best"]
    found = [file for file in (repository_file(model, "recipe.yaml"), *files) if file and file.is_file()]
    return load_recipe(str(found[0])) if found else None


def _module_folders(model: str, modules: list[dict[str, Any]]) -> list[str]:
    """Return the folders of modules, and of those that a router among them has."""
    folders = []
    for module in modules:
        folders += [module["path"]] if module["path"] else []
        folders += _routed_folders(model, module["path"])
    if outside := [folder for folder in folders if not is_inside(folder)]:
        raise UserError(f"{model}: a router names {outside[0]}, which is outside of the model")
    return folders


def _routed_folders(model: str, folder: str) -> list[str]:
    """Return the folders of the modules that a router has, and of those of a router in it."""
    names = [Path(folder, name).as_posix() for name in (ROUTER, "config.json") if is_inside(folder)]
    files = [file for name in names if (file := repository_file(model, name))]
    types = read_json(files[0]).get("types") if files else None  # of plain configurations, none
    inner = [Path(folder, name).as_posix() for name in types] if isinstance(types, dict) else []
    return [found for name in inner if name != folder for found in (name, *_routed_folders(model, name))]


def _has_word_vectors(model: str) -> bool:
    return model == BAG_OF_WORDS or os.path.isfile(model)


def _refuse_pooling(model: str, pooling: str | None) -> None:
    if pooling is not None:
        raise UserError(f"--pooling {pooling}: {model} defines its pooling itself; omit the option")


def is_published(model: str) -> bool:
    """Return whether a directory or Hub repository is one of the zoo: its configuration has the key `csezoo`."""
    path = repository_file(model, "config.json")
    if path is not None:
        return "csezoo" in read_json(path)
    if repository_file(model, "modules.json"):
        return False
    refuse_run_or_adapter(model)
    raise UserError(
        f"{model} is neither a directory with a model nor a model on the Hub that can be reached; check the name"
    )
