"""Which precision is fastest on a device, found out by measuring, and which one a run has."""

from __future__ import annotations

import logging
import statistics
import time

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, broadcast_object_list

logger = logging.getLogger(__name__)


def choose_precision(name: str | None) -> str | None:
    """A recipe's `mixed_precision`, where `auto` becomes `bf16` or `no`, the same on all processes.

    bf16 is 1.65 times as fast as float32 on a CPU with units for it, and a quarter as fast on one without.
    """
    if name != "auto":
        return name
    state = PartialState()
    ratio = bf16_speed(state.device) if state.is_main_process else 0.0  # the others are told
    ratio = broadcast_object_list([ratio])[0] if state.num_processes > 1 else ratio
    chosen = "bf16" if ratio > 1 else "no"
    logger.info("bf16 is %.2f times as fast as float32 here: precision %s", ratio, chosen)
    return chosen


def precision_of(accelerator: Accelerator) -> str:
    """What autocast computes in: `no`, `bf16` or `fp16`; under DeepSpeed accelerate itself would say `no`."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return "bf16" if accelerator.deepspeed_plugin.get_value("torch_autocast.enabled") else "no"
    return accelerator.mixed_precision


def bf16_speed(device: torch.device, *, repeats: int = 5) -> float:
    """Seconds of a float32 matrix product to those of a bf16 one, as autocast makes it, casts and all.

    Args:
        device: measured on.
        repeats: products of each, in turns; the medians count.
    """
    size = 4096 if device.type == "cuda" else 512  # a GPU takes no longer to multiply a small one than to start
    left, right = torch.randn(2, size, size, device=device)

    def seconds(bf16: bool) -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return product_seconds(left, right)

    for bf16 in (False, True):
        seconds(bf16)  # the first of each is slower than any other
    pairs = [(seconds(False), seconds(True)) for _ in range(repeats)]
    single, half = (statistics.median(times) for times in zip(*pairs, strict=True))
    return single / half


def product_seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    """Seconds of one matrix product, in autocast's precision where that is on."""
    started = time.perf_counter()
    (left @ right)[0, 0].item()  # waits for the device
    return time.perf_counter() - started
