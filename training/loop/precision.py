"""Measure which precision is fastest on a device, and name the one that a run uses."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType
from transformers import PreTrainedModel

from ..recipes import Recipe
from .distributed.hosts import from_main

logger = logging.getLogger(__name__)
TAKE_FLOAT32 = (None, "eager", "sdpa", "flex_attention")  # attentions of transformers


def choose_precision(name: str | None) -> str | None:
    """Return a recipe's `mixed_precision`, with `auto` resolved to `bf16` or `no`, the same on all processes.

    bf16 is 1.65 times as fast as float32 on a CPU with units for it, and a quarter as fast on one without.
    """
    if name != "auto":
        return name
    state = PartialState()
    ratio = bf16_speed(state.device) if state.is_main_process else 0.0  # the other processes receive it below
    ratio = from_main(ratio)
    chosen = "bf16" if ratio > 1 else "no"
    logger.info("bf16 is %.2f times as fast as float32 on this device: using precision %s", ratio, chosen)
    return chosen


def precision_of(accelerator: Accelerator) -> str:
    """Return autocast's precision: `no`, `bf16` or `fp16`. Under DeepSpeed, accelerate itself reports `no`."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return "bf16" if accelerator.deepspeed_plugin.get_value("torch_autocast.enabled") else "no"
    return accelerator.mixed_precision


@contextmanager
def float32_attention(model: PreTrainedModel, recipe: Recipe) -> Iterator[None]:
    """Let a model run without autocast inside the context, as for dev scores and checks, whatever its attention is.

    Flash attention and many kernels of the Hub take only half precision. `sdpa` takes their place.
    """
    name = recipe.attn_implementation
    if name in TAKE_FLOAT32:
        yield
        return
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(name)


def bf16_speed(device: torch.device, *, repeats: int = 5) -> float:
    """Return how many times faster a matrix product is in bf16 than in float32, including the casts of autocast.

    Args:
        repeats: products in each precision, alternating. The fastest are compared, because other work on the
            machine slows some down.
    """
    size = 4096 if device.type == "cuda" else 512  # on a GPU, launching would dominate a small product
    left, right = torch.randn(2, size, size, device=device)

    def seconds(bf16: bool) -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return product_seconds(left, right)

    for bf16 in (False, True):
        seconds(bf16)  # warm up: the first product is the slowest
    pairs = [(seconds(False), seconds(True)) for _ in range(repeats)]
    single, half = (min(times) for times in zip(*pairs, strict=True))
    return single / half


def product_seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the seconds of one matrix product, in autocast's precision if autocast is on."""
    started = time.perf_counter()
    (left @ right)[0, 0].item()  # waits for the device
    return time.perf_counter() - started
