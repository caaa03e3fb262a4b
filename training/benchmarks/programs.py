"""Benchmarks of separate processes, launched as a user would: scaling, memory over time, the time to start."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NamedTuple, TextIO

import psutil
from tqdm.auto import tqdm

from ..data.texts import load_sentences
from ..environment import default_device
from ..errors import UserError
from ..files import read_json
from ..recipes import Recipe, dump_recipe, make_recipe

AXES = {
    "batch_size": (16, 32, 64, 128),
    "max_length": (16, 32, 64, 128),
    "processes": (1, 2),
    "inner_steps": (1, 2, 4),
}
SHORT = 10_000  # lines of the short file of `benchmark_start`
EVERY = 0.05  # seconds between two samples there


def benchmark_scaling(
    recipe: Recipe, *, axes: Sequence[str] = (), steps: int = 5, repeats: int = 5
) -> dict[str, object]:
    """Measure training rows per second while one value of the recipe changes.

    Every point is a separate run, of which only the optimizer steps are timed. A process has the same number of
    threads at every point, so that one process never uses the cores of two.

    Returns:
        `axes`: for each value of each axis, the median of `rows per second` and the figures of all runs; the
        threads of a process.
    """
    possible = [axis for axis in AXES if axis != "inner_steps" or "inner_steps" in recipe.to_dict()]
    if unknown := [axis for axis in axes if axis not in possible]:
        raise UserError(f"axes: {unknown[0]!r} must be one of {', '.join(possible)} for {recipe.method}")
    points = [(axis, value) for axis in axes or possible for value in AXES[axis]]
    threads = max(1, (os.cpu_count() or 1) // max(AXES["processes"]))
    rates: dict[str, dict[str, list[float]]] = {axis: {} for axis, _ in points}
    for axis, value in tqdm(points * repeats, desc="Runs", disable=not sys.stderr.isatty()):
        rates[axis].setdefault(str(value), []).append(rows_per_second(recipe, axis, value, steps, threads))
    medians = {
        axis: {value: {"rows per second": statistics.median(runs), "runs": runs} for value, runs in values.items()}
        for axis, values in rates.items()
    }
    about = {"recipe": recipe.recipe, "method": recipe.method, "steps": steps}
    return {**about, "axes": medians, "machine": {"threads": threads}}


def rows_per_second(recipe: Recipe, axis: str, value: int, steps: int, threads: int) -> float:
    """Run a recipe for some optimizer steps and return the speed in its results."""
    processes = value if axis == "processes" else 1
    keys = {"max_steps": steps, "eval_data": "none", "report_to": "none", "seeds": recipe.seeds[:1]}
    if axis != "processes":
        keys[axis] = value
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if default_device().type == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes)]
    launch += ["--num_machines", "1", "--dynamo_backend", "no", "--mixed_precision", "no", "--quiet"]
    launch += ["--multi_gpu"] if processes > 1 else []
    with TemporaryDirectory() as directory:
        file, output = Path(directory) / "recipe.yaml", Path(directory) / "run"
        dump_recipe(make_recipe({**recipe.to_dict(), **keys, "output_dir": str(output)}), file)
        command = [*launch, "-m", "csezoo.training.train", str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise UserError(f"{axis} {value}: the run failed: {done.stderr.strip().splitlines()[-1]}")
        return read_json(output / "results.json")["training"]["rows_per_second"]


class Sample(NamedTuple):
    """Memory and open files of a program and its workers at one moment."""

    second: float  # since the program started
    rss: int  # resident memory in bytes
    files: int  # open file descriptors
    mapped: int = 0  # the part of `rss` that are pages of files, which Linux can drop; 0 on other systems


def benchmark_soak(
    recipe: Recipe, *, steps: int = 3000, lines: int = 1_000_000, every: float = 1.0
) -> dict[str, object]:
    """Train a recipe, then encode a file with its model, and sample the memory of both processes from outside.

    Returns:
        `programs`: for `training` and `encoding`, `second`, `rss` and `files` of every sample, and `growth`, see
        `summary`.
    """
    if not 0 < every < math.inf:
        raise UserError(f"every: {every} must be above 0")
    keys = {"max_steps": steps, "seeds": recipe.seeds[:1], "report_to": "none"}
    with TemporaryDirectory() as directory:
        file, run, text = (Path(directory) / name for name in ("recipe.yaml", "run", "lines.txt"))
        dump_recipe(make_recipe({**recipe.to_dict(), **keys, "output_dir": str(run)}), file)
        training = watch(["csezoo.training.train", str(file)], every)
        write_lines(text, load_sentences(recipe)["0"], lines)
        vectors = str(Path(directory) / "vectors")
        encoding = watch(["csezoo.training.cli", "encode", str(run / "best"), str(text), "--to", vectors], every)
    about = {"recipe": recipe.recipe, "method": recipe.method, "steps": steps, "lines": lines}
    return {**about, "programs": {"training": summary(training), "encoding": summary(encoding)}}


def benchmark_start(recipe: Recipe, *, lines: int = 1_000_000) -> dict[str, object]:
    """Start `csezoo train` on a short and on a long file, each twice, and stop it after its first update.

    Returns:
        `starts`: for each number of lines the `first` start and the `second`, which finds the tokens in the cache: the
        `seconds` to the first update, and the peak `memory` in bytes, without the pages of mapped files.
    """
    if lines <= SHORT:
        raise UserError(f"lines: {lines} must be more than {SHORT:,}, the lines of the short file")
    recipe = replace(recipe, streaming=False)
    sentences = list(load_sentences(recipe)["0"])
    starts: dict[int, dict[str, Any]] = {}
    with TemporaryDirectory() as directory:
        file, text = Path(directory) / "recipe.yaml", Path(directory) / "lines.txt"
        others = ("dataset", "dataset_file", "dataset_revision", "text_columns", "max_train_sentences")
        keys: dict[str, Any] = dict.fromkeys(others)
        keys |= {"train_file": str(text), "max_steps": 2, "log_steps": 1, "seeds": recipe.seeds[:1]}
        cache = {"HF_DATASETS_CACHE": str(Path(directory) / "cache")}
        for count in (SHORT, lines):
            write_lines(text, sentences, count)
            starts[count] = {}
            for name in ("first", "second"):
                keys["output_dir"] = str(Path(directory) / f"{name}-{count}")
                dump_recipe(make_recipe({**recipe.to_dict(), **keys}), file)
                samples = watch(["csezoo.training.train", str(file)], EVERY, until="step 1 ", environment=cache)
                memory = max(sample.rss - sample.mapped for sample in samples)
                starts[count][name] = {"seconds": samples[-1].second, "memory": memory}
    return {"recipe": recipe.recipe, "method": recipe.method, "starts": starts}


def write_lines(file: Path, sentences: Iterable[str], lines: int) -> None:
    """Write sentences to a text file, repeated until it has so many lines."""
    with file.open("w", encoding="utf-8") as written:
        written.writelines(f"{' '.join(sentence.split())}\n" for sentence in islice(cycle(sentences), lines))


def watch(
    module: list[str], every: float, *, until: str | None = None, environment: dict[str, str] | None = None
) -> list[Sample]:
    """Run a module with arguments and sample its memory and open files until it ends.

    Args:
        until: a text that the module prints to stderr. It is stopped then.
        environment: variables beside those of this process.
    """
    samples: list[Sample] = []
    started = time.perf_counter()
    variables = {**os.environ, **(environment or {})}
    command = [sys.executable, "-m", *module]
    with TemporaryFile("w+") as errors, tqdm(desc=module[0], unit=" samples", disable=not sys.stderr.isatty()) as bar:
        program = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=variables)
        while program.poll() is None:
            with suppress(psutil.NoSuchProcess):  # the program or a worker has just ended
                family = [program, *program.children(recursive=True)]
                memory = [process.memory_info()._asdict() for process in family]
                rss, mapped = (sum(each.get(name, 0) for each in memory) for name in ("rss", "shared"))
                files = sum(process.num_fds() for process in family)
                samples.append(Sample(time.perf_counter() - started, rss, files, mapped))
            bar.update()
            if until and until in _read(errors):
                program.kill()
                program.wait()
                return samples
            time.sleep(every)
        if program.returncode != 0:
            raise UserError(f"{module[0]} failed: {(_read(errors).strip() or 'it printed nothing').splitlines()[-1]}")
        if until:
            raise UserError(f"{module[0]} ended before it printed {until!r}")
    return samples


def _read(file: TextIO) -> str:
    """Return what another process has written to a file, without moving the place where it writes."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def summary(samples: list[Sample]) -> dict[str, object]:
    """Return the samples as columns, and the `growth`: the median of the last quarter minus that of the second.

    The first quarter is the warm-up: libraries are loaded, caches and the allocator reach their size.

    Example:
        >>> summary([Sample(float(second), 100 + second, 7) for second in range(8)])["growth"]
        {'rss': 4.0, 'files': 0.0}
    """
    quarter = len(samples) // 4
    if not quarter:
        raise UserError(
            f"every: {len(samples)} samples are too few; give a smaller --every, or more --steps and --lines"
        )
    columns = {name: [getattr(sample, name) for sample in samples] for name in ("second", "rss", "files")}
    growth = {
        name: statistics.median(columns[name][-quarter:]) - statistics.median(columns[name][quarter : 2 * quarter])
        for name in ("rss", "files")
    }
    return {**columns, "growth": growth}
