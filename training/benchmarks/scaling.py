"""Benchmark of scaling: the speed of training by batch size, length, processes and inner steps."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tqdm.auto import tqdm

from ..errors import UserError
from ..recipes import Recipe, dump_recipe, make_recipe
from .race import machine

AXES = {
    "batch_size": (16, 32, 64, 128),
    "max_length": (16, 32, 64, 128),
    "processes": (1, 2),
    "inner_steps": (1, 2, 4),
}


def benchmark_scaling(
    recipe: Recipe, *, axes: Sequence[str] = (), steps: int = 5, repeats: int = 5
) -> dict[str, object]:
    """Measure training rows per second while one value of the recipe changes.

    Every point is a separate run, launched as a user would launch it. Only its optimizer steps are timed. A process
    has the same number of threads at every point, so that one process never uses the cores of two.

    Args:
        recipe: a recipe of any method.
        axes: names out of `AXES`; all that the method has by default.
        steps: optimizer steps of a run.
        repeats: runs of each point; all points are run once, then all again. The median counts.

    Returns:
        `axes`: for each value of each axis, the median of `rows per second` and the figures of all runs; the machine,
        with the threads of a process.

    Raises:
        UserError: an unknown axis, fewer than one step or repeat, or a run failed (with the last line it printed).
    """
    possible = [axis for axis in AXES if axis != "inner_steps" or "inner_steps" in recipe.to_dict()]
    if unknown := [axis for axis in axes if axis not in possible]:
        raise UserError(f"axes: {unknown[0]!r} must be one of {', '.join(possible)} for {recipe.method}")
    if min(steps, repeats) < 1:
        raise UserError(f"steps: {steps} and repeats: {repeats} must be at least 1")
    points = [(axis, value) for axis in axes or possible for value in AXES[axis]]
    threads = max(1, (os.cpu_count() or 1) // max(AXES["processes"]))
    rates: dict[tuple[str, int], list[float]] = {point: [] for point in points}
    rounds = [point for _ in range(repeats) for point in points]
    for axis, value in tqdm(rounds, desc="Runs", disable=not sys.stderr.isatty()):
        rates[axis, value].append(rows_per_second(recipe, axis, value, steps, threads))
    return {
        "benchmark": "scaling",
        "recipe": recipe.recipe,
        "method": recipe.method,
        "steps": steps,
        "axes": {
            axis: {
                str(value): {"rows per second": statistics.median(rates[axis, value]), "runs": rates[axis, value]}
                for value in AXES[axis]
            }
            for axis in dict(points)
        },
        "machine": {**machine(), "threads": threads},
    }


def rows_per_second(recipe: Recipe, axis: str, value: int, steps: int, threads: int) -> float:
    """Run a recipe for some optimizer steps and return the speed in its results."""
    processes = value if axis == "processes" else 1
    keys = {"max_steps": steps, "eval_data": "none", "report_to": "none", "seeds": recipe.seeds[:1]}
    if axis != "processes":
        keys[axis] = value
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    launch = ["--num_processes", str(processes), "--num_machines", "1", "--dynamo_backend", "no"]
    launch += ["--mixed_precision", "no", "--quiet", *(["--multi_gpu"] if processes > 1 else [])]
    if not torch.cuda.is_available():
        environment["ACCELERATE_USE_CPU"] = "true"
    with TemporaryDirectory() as directory:
        file, output = Path(directory) / "recipe.yaml", Path(directory) / "run"
        dump_recipe(make_recipe({**recipe.to_dict(), **keys, "output_dir": str(output)}), file)
        command = [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            *launch,
            "-m",
            "csezoo.training.train",
            str(file),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise UserError(f"{axis} {value}: the run failed: {done.stderr.strip().splitlines()[-1]}")
        results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    return results["training"]["rows_per_second"]
