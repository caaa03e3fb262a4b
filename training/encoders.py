"""Any model as an encoder: a zoo checkpoint, a transformers encoder with a pooling, a sentence-transformers model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from transformers import AutoModel

from csezoo.modeling import METHODS, SimCSEConfig, SimCSEModel
from csezoo.modeling.modeling_sentence_encoder import without_pooler

from .building import load_backbone, load_tokenizer, longest_input
from .errors import UserError, one_line
from .evaluation import Encode
from .prompts import serving_tokenizer, template_token_ids


def load_encoder(
    model: str, *, pooling: str | None = None, batch_size: int = 128, dtype: str = "float32", progress: bool = False
) -> tuple[Encode, dict[str, object]]:
    """A function from texts to vectors, and what a receipt says of it.

    Args:
        model: directory or Hub id.
        pooling: for a plain transformers encoder, which has none of its own.
        batch_size: texts a forward pass.
        dtype: of the weights.
        progress: show a bar.

    Raises:
        UserError: the model cannot be loaded, or a pooling is missing or given in vain.
    """
    if config_model_type(model) in METHODS:
        _refuse_pooling(model, pooling)
        encoder = load_checkpoint(model, dtype)
        return _zoo(encoder, None, batch_size, progress), _receipt(encoder.config.pooling, dtype, "csezoo")
    if _file(model, "modules.json"):
        _refuse_pooling(model, pooling)
        return _sentence_transformer(model, batch_size, dtype, progress)
    if pooling is None:
        raise UserError(f"{model} is a plain encoder: give --pooling cls, mean, max, first_last_mean or last2_mean")
    encoder, tokenizer = plain_encoder(model, pooling, dtype)
    return _zoo(encoder, tokenizer, batch_size, progress), _receipt(pooling, dtype, "transformers")


def load_checkpoint(model: str, dtype: str = "float32"):
    """A serving model of the zoo, by the code that is installed: the checkpoint's own is not run.

    Raises:
        UserError: it cannot be loaded.
    """
    try:
        return AutoModel.from_pretrained(model, dtype=dtype, trust_remote_code=False)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{model} could not be loaded ({one_line(error)})") from error


def plain_encoder(model: str, pooling: str, dtype: str = "float32"):
    """A transformers encoder without training: its backbone under a pooling, with a tokenizer."""
    backbone = load_backbone(model, dtype=dtype)
    tokenizer = load_tokenizer(model)
    try:
        config = SimCSEConfig(backbone_config=backbone.config, pooling=pooling)
    except ValueError as error:
        raise UserError(str(error)) from error
    encoder = SimCSEModel(config).to(backbone.dtype).eval()
    encoder.backbone.load_state_dict(without_pooler(backbone))
    longest = longest_input(backbone.config)
    return encoder, serving_tokenizer(tokenizer, template_token_ids(tokenizer), max_length=longest)


def _zoo(encoder, tokenizer, batch_size: int, progress: bool) -> Encode:
    encoder.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return lambda texts: encoder.encode(texts, tokenizer, batch_size=batch_size, show_progress_bar=progress)


def _sentence_transformer(model: str, batch_size: int, dtype: str, progress: bool):
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UserError(f"{model} needs sentence-transformers: pip install sentence-transformers") from None
    try:
        encoder = SentenceTransformer(model, model_kwargs={"dtype": dtype})
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"{model} could not be loaded ({one_line(error)})") from error

    def encode(texts):
        return encoder.encode(texts, batch_size=batch_size, show_progress_bar=progress)

    return encode, _receipt("its own", dtype, "sentence-transformers")


def _receipt(pooling: str, dtype: str, kind: str) -> dict[str, object]:
    return {"pooling": pooling, "dtype": dtype, "kind": kind}


def _refuse_pooling(model: str, pooling: str | None) -> None:
    if pooling is not None:
        raise UserError(f"--pooling {pooling}: {model} brings its own pooling, leave the option out")


def config_model_type(model: str) -> str:
    """What a directory's or Hub repository's configuration calls its model; empty where only sentence-transformers
    can read it.
    """
    path = _file(model, "config.json")
    if path is not None:
        try:
            return json.loads(path.read_text(encoding="utf-8")).get("model_type", "")
        except ValueError as error:
            raise UserError(f"{path} is not valid JSON ({one_line(error)})") from error
    if _file(model, "modules.json"):
        return ""
    raise UserError(f"{model} is neither a directory with a model nor a model on the Hub that can be reached")


def _file(model: str, name: str) -> Path | None:
    """A file of a directory or a Hub repository, or None."""
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(model, name))
    except (LocalEntryNotFoundError, EntryNotFoundError, HFValidationError):
        return None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(f"{model} could not be reached: {one_line(error)}") from error
