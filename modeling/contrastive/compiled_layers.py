"""Compile the layers of encoders, beside packed tokens and hooks."""

from typing import cast

import torch
from transformers import PreTrainedModel

from ..serving.encoder_layers_csezoo import hidden_layers
from .packed_rows import Packing


def compile_layers(encoder: PreTrainedModel, backend: str = "inductor") -> None:
    """Compile the parts of each layer of an encoder (attention, feed-forward network), in place.

    One graph serves all layers and all numbers of tokens, except with LoRA (DiffAug, `lora_rank`), whose parts are
    compiled again for some. Hooks on the layers, with which methods change them, and the attention of packed tokens
    stay outside of the graphs. Call this after a first pass with packed tokens, which puts hooks into a layer.
    """
    # Not where it is defined, because this loads the compiler.
    Packing.attend = torch.compiler.disable(Packing.attend)  # type: ignore[method-assign]
    for layer in dict.fromkeys(hidden_layers(cast(PreTrainedModel, encoder.base_model))):
        for part in layer.children():
            part.compile(dynamic=True, backend=backend)
