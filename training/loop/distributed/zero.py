"""Under DeepSpeed every process holds a part of the optimizer's state: the whole of it, and parts of a whole."""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate.utils import DeepSpeedPlugin

from ...errors import UserError
from ...recipes import Recipe


def deepspeed_plugin(recipe: Recipe, precision: str | None) -> DeepSpeedPlugin | None:
    """DeepSpeed as `accelerate launch` was told to use it, None without.

    Precision is autocast's, as it is without DeepSpeed, whose own would round the weights and the loss too.

    Args:
        recipe: accumulation and clipping are its own.
        precision: the recipe's, see `precision.choose_precision`; None is what `accelerate launch` was told.

    Raises:
        UserError: it was told of another file, of ZeRO 3 or of offloading, which checkpoints do not know, or of fp16.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true":
        return None
    precision = precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "bf16"):
        raise UserError(f"mixed_precision: {precision} does not go with DeepSpeed: use bf16 or no")
    example = "launch with examples/launch/deepspeed.yaml"
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in os.environ:
        raise UserError(f"deepspeed_config_file: the recipe says what would be in it, {example}")
    plugin = DeepSpeedPlugin(
        gradient_accumulation_steps=recipe.gradient_accumulation_steps,
        gradient_clipping=recipe.max_grad_norm or 0.0,
    )
    if plugin.zero_stage not in (1, 2):
        raise UserError(f"zero_stage: {plugin.zero_stage} is none of 1, 2: {example}")
    if plugin.offload_optimizer_device != "none":
        raise UserError(f"offload_optimizer_device: {plugin.offload_optimizer_device} must be none: {example}")
    plugin.deepspeed_config |= {
        "train_micro_batch_size_per_gpu": 1,  # asked for, and used for its own logs alone
        "bf16": {"enabled": False},  # else accelerate switches it on
        "torch_autocast": {"enabled": precision == "bf16", "dtype": "bfloat16", "lower_precision_safe_modules": []},
    }
    return plugin


def gather_moments(optimizer: Any) -> dict[str, torch.Tensor]:
    """The whole state of DeepSpeed's optimizer, by parameter index and slot; all processes call it together."""
    from deepspeed.utils import safe_get_full_optimizer_state

    moments = {}
    for index, parameter, part in _parameters(optimizer):
        _link(parameter, part, optimizer)
        for name, tensor in optimizer.state[part].items():
            whole = tensor.clone() if name == "step" else safe_get_full_optimizer_state(parameter, name)
            moments[f"{index}.{name}"] = whole
    return moments


def scatter_moments(optimizer: Any, moments: dict[int, dict[str, torch.Tensor]]) -> None:
    """The way back, after a checkpoint was loaded: this process's part of the state, and of the weights it steps."""
    from deepspeed.utils import safe_set_full_optimizer_state

    for index, parameter, part in _parameters(optimizer):
        slots = moments.get(index, {})  # without DeepSpeed, none of a parameter that had no gradient
        for name, tensor in slots.items():
            own = tensor.to(part.device) if name == "step" else torch.zeros_like(part)
            optimizer.state[part].setdefault(name, own)
        _link(parameter, part, optimizer)
        for name in slots.keys() - {"step"}:
            safe_set_full_optimizer_state(parameter, slots[name], name)
    optimizer.refresh_fp32_params()


def _parameters(optimizer: Any) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """Each parameter's index, itself, and the part of its group's weights, all in a row, that this process steps."""
    groups = zip(optimizer.bit16_groups, optimizer.param_groups, strict=True)
    parts = [(parameter, group["params"][0]) for parameters, group in groups for parameter in parameters]
    return [(index, *pair) for index, pair in enumerate(parts)]


def _link(parameter: torch.Tensor, part: torch.Tensor, optimizer: Any) -> None:
    """Tell a parameter where its state is; DeepSpeed does so too early, after the first group's first step."""
    from deepspeed.utils import lazy_init_hp_params_optimizer_state

    lazy_init_hp_params_optimizer_state([parameter], part, optimizer.state)
