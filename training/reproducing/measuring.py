"""What is known of a run: its scores, those of its evaluation, and what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from ..files import read_json, write_json
from .columns import GLUE, PAPER, RUN, Column, suite_of
from .plan import Run

COMPLETE = "complete"  # in the file of a run's evaluation: the suites of which all tasks are measured


def read_results(run: Run) -> list[dict]:
    """Return all results of a run, each with its suite; an empty list if there are none yet."""
    results = [{"suite": suite_of(row["task"]), **row} for row in _read(run.directory / "results.json")["results"]]
    measured = _read(run.directory / run.evaluation)
    results += [row for row in measured["results"] if row["suite"] in measured.get(COMPLETE, [])]
    for row in _read(run.directory / run.glue)["results"]:
        results.append({**row, "suite": GLUE, "task": row["task"].removeprefix("GLUE ")})
    return results + run_costs(run)


def run_training(directory: Path) -> dict:
    """Return how a run was trained, on what data and machine, without its results and its sentences."""
    content = _read(directory / "results.json")
    return {key: content[key] for key in ("recipe", "changed", "training", "machine") if key in content}


def write_complete(run: Run, suites: Sequence[str], results: list[dict]) -> None:
    """Write that all tasks of suites are measured, with their results. A suite that was begun does not count."""
    content = _read(run.directory / run.evaluation)
    others = [row for row in content["results"] if row["suite"] not in suites]
    complete = sorted({*content.get(COMPLETE, []), *suites})
    write_json(run.directory / run.evaluation, {**content, COMPLETE: complete, "results": others + results})


def _read(path: Path) -> dict:
    return read_json(path) if path.is_file() else {"results": []}


def finished(run: Run, columns: Sequence[Column]) -> bool:
    """Return whether a run is trained, and everything measured that the columns need."""
    return is_trained(run) and not missing_suites(run, columns)


def is_trained(run: Run) -> bool:
    """Return whether a run is trained on all its seeds; a finished model is."""
    if run.recipe is None:
        return True
    results = _read(run.directory / "results.json")
    seeds = results.get("seeds") or [results.get("seed")]
    return not set(run.recipe.seeds) - set(seeds)


def missing_suites(run: Run, columns: Sequence[Column]) -> list[tuple[str, str | None]]:
    """Return the suites, and the tasks of GLUE, that are not measured yet."""
    there = {_measured(row["suite"], row["task"]) for row in read_results(run)}
    needed = dict.fromkeys(_measured(c.suite, c.task) for c in columns if c.suite not in (RUN, PAPER))
    return [each for each in needed if each not in there]


def _measured(suite: str, task: str | None) -> tuple[str, str | None]:
    """Return what is measured in one piece: a suite, or a task of GLUE."""
    return suite, task if suite == GLUE else None


def run_costs(run: Run) -> list[dict]:
    """Return what a finished training run cost: minutes, GB of memory, millions of parameters.

    The memory is that of the GPU, or of the process on a CPU. Added parameters are those of the served model beside
    its backbone, in percent of the backbone's. The labelled loss is the last of the stage on labelled pairs. A run
    whose weights were deleted keeps its time and its memory. A run of several seeds, such as the winner of a search,
    has no costs of its own.
    """
    training = _read(run.directory / "results.json").get("training")
    if run.recipe is None or training is None:
        return []
    costs = {
        "minutes": training["seconds"] / 60,
        "memory": (training["peak_device_bytes"] or training["peak_rss_bytes"]) / 1e9,
    }
    if (run.directory / "best" / "model.safetensors").is_file():
        backbone, added = _served_parameters(run.directory / "best")
        costs |= {"parameters": (backbone + added) / 1e6, "added parameters": 100 * added / backbone}
    if trained := sorted(run.directory.glob("checkpoints/step-*/model.safetensors")):
        costs["training parameters"] = sum(_parameters(trained[-1]).values()) / 1e6
    if (loss := _labelled_loss(run.directory / "metrics.jsonl")) is not None:
        costs["labelled loss"] = loss
    return [{"suite": RUN, "task": name, "metric": "cost", "value": value} for name, value in costs.items()]


def _served_parameters(repository: Path) -> tuple[int, int]:
    """Return the parameters of the backbone, and of what a published repository serves beside it.

    A model without a plain form has all its tensors in one file. The others have a file for each module. The pooler of
    transformers is zero there, and no vector passes it.
    """
    sizes = _parameters(repository / "model.safetensors")
    encoder = {name: size for name, size in sizes.items() if "pooler" not in name.split(".")}
    own_form = any(name.startswith("backbone.") for name in encoder)
    backbone = sum(size for name, size in encoder.items() if name.startswith("backbone." if own_form else ""))
    modules = sum(sum(_parameters(file).values()) for file in repository.glob("*/model.safetensors"))
    return backbone, sum(encoder.values()) - backbone + modules


def _parameters(file: Path) -> dict[str, int]:
    """Return the number of parameters of each tensor in a file, without reading the tensors."""
    sizes = {}
    with safe_open(file, framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118  # no mapping: it cannot be iterated over
            sizes[name] = math.prod(tensors.get_slice(name).get_shape())
    return sizes


def _labelled_loss(metrics: Path) -> float | None:
    """Return the last loss of the stage on labelled pairs, whose loss has no other part."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if "nli" in line and line["nli"] == line["loss"]]
    return losses[-1] if losses else None
