"""Load a model of transformers safely, and only if it is not larger than memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
from transformers import AutoConfig, AutoModel

from csezoo.modeling.contrastive.weight_files import weight_files

from ..errors import UserError

MOST_LAYERS = 1000  # far more than any encoder has


def refuse_oversized(name: str, config: dict[str, object], make: Callable[[], torch.nn.Module]) -> None:
    """Refuse a model larger than this machine's memory before it is built; configurations are untrusted.

    Args:
        config: of the model. The number of layers is limited too, because a layer needs memory beside its tensors.
        make: builds the model; called here without allocating tensors.
    """
    settings = list(_settings(config))
    for key, value in settings:
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(
                f"{name}: its configuration has {key}: {value}, which is not a finite number; check its config.json"
            )
    layers = max((value for key, value in settings if key.endswith("layers") and isinstance(value, int)), default=0)
    if layers > MOST_LAYERS:
        raise UserError(f"{name}: its configuration has {layers:,} layers; at most {MOST_LAYERS:,} are allowed")
    with torch.device("meta"):
        needed = sum(tensor.numel() * tensor.element_size() for tensor in make().state_dict().values())
    memory = psutil.virtual_memory().total
    if needed > memory:
        raise UserError(
            f"{name}: its configuration needs {needed / 2**30:,.1f} GiB for parameters, this machine has "
            f"{memory / 2**30:,.1f} GiB of memory; give a smaller model"
        )


def load_pretrained(auto_class: Any, name: str, **options: Any) -> tuple[Any, list[str]]:
    """Load a model that fits into memory, and return it with the names of the tensors that it lacks.

    This never runs a repository's code and never reads a pickle: weights that are not safetensors are an error.
    """
    weight_files(name, revision=options.get("revision"))
    refuse_oversized_checkpoint(name, auto_class, revision=options.get("revision"))
    options |= {"trust_remote_code": False, "use_safetensors": True, "output_loading_info": True}
    model, info = auto_class.from_pretrained(name, **options)
    return model, sorted(info["missing_keys"])


def refuse_oversized_checkpoint(name: str, auto_class: Any = AutoModel, revision: str | None = None) -> None:
    """Refuse a directory or Hub id whose model, built by `auto_class`, would be larger than memory."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False, revision=revision)
    refuse_oversized(name, config.to_dict(), lambda: auto_class.from_config(config, trust_remote_code=False))


def _settings(config: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of a configuration, and of the configurations nested in it."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _settings(value)
        else:
            yield str(key), value
