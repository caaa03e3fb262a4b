"""How large a model is, before it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    PretrainedConfig,
)

from ..errors import UserError

MOST_LAYERS = 1000  # no encoder has as many


def refuse_oversized(name: str, said: dict[str, object], make: Callable[[], torch.nn.Module]) -> None:
    """Stop before a model is made that is larger than this machine's memory: a configuration can say anything.

    Args:
        name: of the model, for the message.
        said: its configuration; a layer takes memory of its own beside its tensors.
        make: makes it; here without allocating its tensors.

    Raises:
        UserError: its parameters alone need more, or it has more layers than any encoder.
    """
    layers = most_layers(said)
    if layers > MOST_LAYERS:
        raise UserError(f"{name}: its configuration asks for {layers:,} layers, no encoder has over {MOST_LAYERS:,}")
    with torch.device("meta"):
        needed = sum(tensor.numel() * tensor.element_size() for tensor in make().state_dict().values())
    memory = psutil.virtual_memory().total
    if needed > memory:
        raise UserError(
            f"{name}: its configuration asks for {needed / 2**30:,.1f} GiB of parameters, this machine has "
            f"{memory / 2**30:,.1f} GiB"
        )


def refuse_oversized_checkpoint(name: str, auto_class: Any = AutoModel, revision: str | None = None) -> None:
    """The same of a directory or Hub id, as `auto_class` would make it."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False, revision=revision)
    refuse_oversized(name, config.to_dict(), lambda: auto_class.from_config(config, trust_remote_code=False))


def most_layers(said: dict[str, object]) -> int:
    """The largest number of layers that a configuration, or one inside it, names.

    Example:
        >>> most_layers({"num_hidden_layers": 2, "backbone_config": {"num_hidden_layers": 12}})
        12
    """
    inner = [most_layers(value) for value in said.values() if isinstance(value, dict)]
    own = [value for key, value in said.items() if isinstance(value, int) and str(key).endswith("layers")]
    return max(own + inner, default=0)


def longest_input(config: PretrainedConfig) -> int:
    """Longest sequence of a backbone: RoBERTa's positions start after the padding index."""
    offset = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0
    return config.max_position_embeddings - offset
