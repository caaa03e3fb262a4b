"""Benchmark of training memory: the peak of an optimizer step against that of the encoder passes it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile

from ..recipes import Recipe
from .race import machine
from .training import Updates, encoders


def benchmark_memory(recipe: Recipe, *, steps: int = 1) -> dict[str, object]:
    """Measure the memory of optimizer steps against that of the encoder passes they need.

    Memory is the bytes of all tensors that exist at a time. It includes the weights and the optimizer's moments, for
    the passes too.

    Args:
        recipe: a recipe of any method.
        steps: optimizer steps.

    Returns:
        * `kept bytes`: of the weights and moments;
        * `peak bytes` of the steps and of their passes, and `memory ratio`;
        * `floor`: the ratio if a step took only the gradients of the weights outside of the encoders in addition;
        * the machine.

    Raises:
        UserError: the recipe cannot be trained, or fewer than one step.
    """
    updates = Updates(recipe, steps)
    updates.run()  # makes the moments
    model = updates.built.model
    passes = updates.needed_passes(updates.batches())
    moments = [value for state in updates.optimizer.state.values() for value in state.values()]
    kept = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *filter(torch.is_tensor, moments)))
    inside = {id(parameter) for encoder in encoders(model) for parameter in encoder.parameters()}
    heads = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in inside]
    peaks = {}
    for name, run in {"ours": updates.run, "usual": lambda: updates.run_passes(passes)}.items():
        model.zero_grad()
        peaks[name] = kept + allocated_at_most(run)
    return {
        "benchmark": "memory",
        **updates.settings(),
        "kept bytes": kept,
        "peak bytes": peaks,
        "memory ratio": peaks["ours"] / peaks["usual"],
        "floor": 1 + sum(weight.nbytes for weight in heads) / peaks["usual"],
        "machine": machine(),
    }


def allocated_at_most(run: Callable[[], object]) -> int:
    """Return the most bytes that tensors made by `run` occupy at a time, on the GPU if there is one.

    Example:
        >>> allocated_at_most(lambda: torch.zeros(1000) + torch.zeros(1000))  # two terms and their sum
        12000
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]")
