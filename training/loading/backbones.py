"""Load a pre-trained encoder without running its code or reading a pickle."""

from __future__ import annotations

from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoModel,
    PreTrainedModel,
)

from csezoo.modeling import METHODS

from ..errors import UserError, one_line
from .sizes import refuse_oversized_checkpoint

# Never run a repository's code and never read a pickle: weights that are not safetensors are an error.
SAFELY = {"trust_remote_code": False, "use_safetensors": True}
# What transformers, tokenizers and torch raise where a repository's configuration or tokenizer has values that they
# do not expect: a size of 0 or in words, an unknown activation, a list in the place of an object.
LOAD_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    ImportError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)


def load_backbone(base_model: str, **options: Any) -> PreTrainedModel:
    """Load a pre-trained encoder without its pre-training heads. For a checkpoint of the zoo, return its backbone.

    Args:
        base_model: Hub id or directory.
        options: of `from_pretrained`.

    Raises:
        UserError: the model cannot be found, is larger than memory, lacks tensors or is not an encoder.
    """
    try:
        refuse_oversized_checkpoint(base_model, revision=options.get("revision"))
        model, info = AutoModel.from_pretrained(base_model, output_loading_info=True, **SAFELY, **options)
    except LOAD_ERRORS as error:
        raise UserError(
            f"base_model: {base_model!r} could not be loaded ({one_line(error)}); "
            "give a directory, or a Hub id with the network on"
        ) from error
    missing = [name for name in info["missing_keys"] if not name.startswith("pooler.")]
    if missing:
        raise UserError(
            f"base_model: {base_model!r} lacks {len(missing)} tensors ({', '.join(sorted(missing)[:5])}); give a "
            "complete checkpoint"
        )
    backbone = model.backbone if model.config.model_type in METHODS else model
    if backbone.config.is_encoder_decoder or backbone.config.to_dict().get("max_position_embeddings", 0) < 1:
        raise UserError(
            f"base_model: {base_model!r} ({backbone.config.model_type}) is not an encoder of the BERT family; give "
            "one such as google-bert/bert-base-uncased"
        )
    return backbone
