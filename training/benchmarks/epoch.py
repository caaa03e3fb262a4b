"""Benchmark of an epoch: where the time of an update goes, on whatever device there is."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch.profiler import ProfilerActivity, profile

from ..files import flush
from ..hub import sha256
from ..loop.background import host_copies
from ..recipes import Recipe
from .race import seconds_of
from .training import Updates, matmul_rate, operations

# Parts of the names of operators that multiply matrices, attention among them. All others go element by element.
PRODUCTS = ("mm", "matmul", "linear", "convolution", "attention")
SENTENCES = 1_000_000
LARGEST = 10


def benchmark_epoch(recipe: Recipe, *, steps: int = 10) -> dict[str, Any]:
    """Divide the time of an update of a recipe's contrastive stage into its parts.

    * `data`: reading and collating the batch, as long as nothing else goes on. Workers (`num_workers`) do it ahead.
    * `products` of matrices, with attention, and `elementwise` operators, both as torch's profiler measures them: on
      the GPU if there is one. On a CPU, the profiler makes an update slower; the times are then those of a usual one,
      in the same proportion.
    * `checkpoint`: copying weights and moments to the host, divided by `eval_steps`. A thread writes them.
    * `host`: the rest, in which Python and torch prepare operators. On a GPU, it waits for them.

    Returns:
        `update`: its seconds; `parts`: of each the seconds in an update; `floor`: the seconds of its operations at the
        speed of a large matrix product; `epoch`: the seconds of 10^6 sentences; `largest`: the operators that take
        most of the time, with their seconds in an update; `writing`: the seconds to write a checkpoint; the settings.
    """
    updates = Updates(recipe, steps + 1)
    seconds = updates.time(warm=1) / steps
    data = seconds_of(lambda: list(updates.batches())) / updates.steps
    operators = profiled(updates, seconds)
    products = sum(each for name, each in operators.items() if is_product(name))
    copying, writing = checkpoint_seconds(updates)
    parts = {
        "data": data,
        "products": products,
        "elementwise": sum(operators.values()) - products,
        "checkpoint": copying / recipe.eval_steps,
    }
    parts["host"] = max(0.0, seconds - data - parts["products"] - parts["elementwise"])
    update = seconds + parts["checkpoint"]
    counted = operations(updates.run) / updates.steps
    return {
        **updates.settings(),
        "steps": steps,
        "update": update,
        "parts": parts,
        "floor": counted / matmul_rate(updates.accelerator),
        "epoch": update * SENTENCES / (recipe.batch_size * recipe.gradient_accumulation_steps),
        "largest": dict(sorted(operators.items(), key=lambda item: -item[1])[:LARGEST]),
        "writing": writing,
    }


def is_product(operator: str) -> bool:
    """Return whether an operator multiplies matrices.

    Example:
        >>> [is_product(name) for name in ("aten::addmm", "aten::gelu", "aten::_scaled_dot_product_attention_math")]
        [True, False, True]
    """
    return any(part in operator for part in PRODUCTS)


def profiled(updates: Updates, seconds: float) -> dict[str, float]:
    """Return the seconds that each operator takes in an update, without the operators that it calls.

    Args:
        seconds: of an update without the profiler.
    """
    on_gpu = updates.accelerator.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        seconds_of_all = updates.time(warm=0)
    unit = 1e-6 / updates.steps if on_gpu else 1e-6 * seconds / seconds_of_all
    return {
        event.key: unit * (event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        for event in profiler.key_averages()
        if event.key.startswith("aten::")
    }


def checkpoint_seconds(updates: Updates) -> tuple[float, float]:
    """Return the seconds to copy weights and moments to the host, and those to write them with their checksum."""
    tensors = dict(updates.built.model.state_dict())
    for number, slots in enumerate(updates.optimizer.optimizer.state.values()):
        tensors |= {f"{number}.{name}": slot for name, slot in slots.items() if isinstance(slot, torch.Tensor)}
    started = time.perf_counter()
    copies = host_copies(tensors)
    copied = time.perf_counter()
    with TemporaryDirectory() as directory:
        file = Path(directory) / "state.safetensors"
        save_file(copies, file)
        sha256(file)
        flush(file)
        return copied - started, time.perf_counter() - copied
