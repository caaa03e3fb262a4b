"""Under DeepSpeed every process has a part of the optimizer's state: gather it and scatter it again."""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate.utils import DeepSpeedPlugin

from ...errors import UserError
from ...recipes import Recipe


def deepspeed_plugin(recipe: Recipe, precision: str | None) -> DeepSpeedPlugin | None:
    """Return the DeepSpeed plugin if `accelerate launch` asked for DeepSpeed, else None.

    Autocast sets the precision, as without DeepSpeed. DeepSpeed's bf16 would also round the weights and the loss.

    Args:
        precision: of the recipe, see `precision.choose_precision`; None means the one given to `accelerate launch`.

    Raises:
        UserError: it asked for a DeepSpeed config file, ZeRO 3, offloading or fp16, which are not supported.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true":
        return None
    precision = precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "bf16"):
        raise UserError(f"mixed_precision: {precision} is not supported with DeepSpeed; use bf16 or no")
    example = "launch with examples/launch/deepspeed.yaml"
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in os.environ:
        raise UserError(f"deepspeed_config_file: not supported, the recipe sets these values; {example}")
    plugin = DeepSpeedPlugin(
        gradient_accumulation_steps=recipe.gradient_accumulation_steps,
        gradient_clipping=recipe.max_grad_norm or 0.0,
    )
    if plugin.zero_stage not in (1, 2):
        raise UserError(f"zero_stage: {plugin.zero_stage} must be 1 or 2; {example}")
    if plugin.offload_optimizer_device != "none":
        raise UserError(f"offload_optimizer_device: {plugin.offload_optimizer_device} must be none; {example}")
    plugin.deepspeed_config |= {
        "train_micro_batch_size_per_gpu": 1,  # required, but DeepSpeed uses it only for its logs
        "bf16": {"enabled": False},  # otherwise accelerate turns it on
        "torch_autocast": {"enabled": precision == "bf16", "dtype": "bfloat16", "lower_precision_safe_modules": []},
    }
    return plugin


def gather_moments(optimizer: Any) -> dict[str, torch.Tensor]:
    """Return the complete optimizer state, by `INDEX.NAME` of a parameter. All processes must call this together."""
    from deepspeed.utils import safe_get_full_optimizer_state

    moments = {}
    for index, parameter, part in _parameters(optimizer):
        _link(parameter, part, optimizer)
        for name, tensor in optimizer.state[part].items():
            full = tensor.clone() if name == "step" else safe_get_full_optimizer_state(parameter, name)
            moments[f"{index}.{name}"] = full
    return moments


def scatter_moments(optimizer: Any, moments: dict[int, dict[str, torch.Tensor]]) -> None:
    """Load this process's part of the optimizer state and of its weights, after loading a checkpoint."""
    from deepspeed.utils import safe_set_full_optimizer_state

    for index, parameter, part in _parameters(optimizer):
        slots = moments.get(index, {})  # empty if the parameter had no gradient in a run without DeepSpeed
        for name, tensor in slots.items():
            initial = tensor.to(part.device) if name == "step" else torch.zeros_like(part)
            optimizer.state[part].setdefault(name, initial)
        _link(parameter, part, optimizer)
        for name in slots.keys() - {"step"}:
            safe_set_full_optimizer_state(parameter, slots[name], name)
    optimizer.refresh_fp32_params()


def _parameters(optimizer: Any) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """Return index and tensor of each parameter, and the part of its group's flat weights updated here."""
    groups = zip(optimizer.bit16_groups, optimizer.param_groups, strict=True)
    parts = [(parameter, group["params"][0]) for parameters, group in groups for parameter in parameters]
    return [(index, *pair) for index, pair in enumerate(parts)]


def _link(parameter: torch.Tensor, part: torch.Tensor, optimizer: Any) -> None:
    """Link a parameter to its state. DeepSpeed does so too early, after the first step of the first group."""
    from deepspeed.utils import lazy_init_hp_params_optimizer_state

    lazy_init_hp_params_optimizer_state([parameter], part, optimizer.state)
