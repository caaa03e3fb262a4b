"""A pre-trained encoder, loaded without running code or reading a pickle."""

from __future__ import annotations

from typing import Any

from safetensors import SafetensorError
from transformers import (
    AutoModel,
    PreTrainedModel,
)

from csezoo.modeling import METHODS

from ..errors import UserError, one_line
from .sizes import refuse_oversized_checkpoint

# No repository's code is run, and no pickle is read: weights are safetensors or an error.
SAFELY = {"trust_remote_code": False, "use_safetensors": True}


def load_backbone(base_model: str, **options: Any) -> PreTrainedModel:
    """A pre-trained encoder without its pre-training heads; of a zoo checkpoint, its backbone.

    Raises:
        UserError: it cannot be found, or it lacks tensors of an encoder.
    """
    try:
        refuse_oversized_checkpoint(base_model, revision=options.get("revision"))
        model, info = AutoModel.from_pretrained(base_model, output_loading_info=True, **SAFELY, **options)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"base_model: {base_model!r} could not be loaded ({one_line(error)}); "
            "give a directory, or a Hub id with the network on"
        ) from error
    lost = [name for name in info["missing_keys"] if not name.startswith("pooler.")]
    if lost:
        raise UserError(f"base_model: {base_model!r} has no {', '.join(sorted(lost)[:5])} ({len(lost)} tensors lost)")
    backbone = model.backbone if model.config.model_type in METHODS else model
    if backbone.config.is_encoder_decoder or backbone.config.to_dict().get("max_position_embeddings", 0) < 1:
        raise UserError(f"base_model: {base_model!r} ({backbone.config.model_type}) is no encoder of the BERT family")
    return backbone
