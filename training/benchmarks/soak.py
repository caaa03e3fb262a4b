"""Soak test: memory and open files must not grow during a long run or while a long file is encoded."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TextIO

import psutil
from tqdm.auto import tqdm

from ..data.texts import load_sentences
from ..errors import UserError
from ..recipes import Recipe, dump_recipe, make_recipe
from .race import machine


@dataclass
class Sample:
    """Memory and open files of a program and its workers at one moment.

    Args:
        second: seconds since the program started.
        rss: resident memory in bytes.
        files: open file descriptors.
        mapped: the part of `rss` that are pages of files, which Linux can drop; 0 on other systems.
    """

    second: float
    rss: int
    files: int
    mapped: int = 0


def benchmark_soak(
    recipe: Recipe, *, steps: int = 3000, lines: int = 1_000_000, every: float = 1.0
) -> dict[str, object]:
    """Train a recipe, then encode a file with its model, and sample the memory of both processes from outside.

    Args:
        recipe: a recipe of any method. The file consists of its sentences, repeated.
        steps: optimizer steps.
        lines: lines of the file, which `csezoo encode` turns into Parquet.
        every: seconds between two samples.

    Returns:
        `programs`: for `training` and `encoding`, `second`, `rss` and `files` of every sample, and `growth`, see
        `summary`; the machine.

    Raises:
        UserError: training or encoding failed (with the last line it printed), `lines` is below 1, or `every` is not
            above 0.
    """
    if lines < 1:
        raise UserError(f"lines: {lines} must be at least 1")
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
    return {
        "benchmark": "soak",
        "recipe": recipe.recipe,
        "method": recipe.method,
        "steps": steps,
        "lines": lines,
        "programs": {"training": summary(training), "encoding": summary(encoding)},
        "machine": machine(),
    }


def write_lines(file: Path, sentences: Iterable[str], lines: int) -> None:
    """Write sentences to a text file, repeated until it has so many lines."""
    with file.open("w", encoding="utf-8") as written:
        written.writelines(f"{' '.join(sentence.split())}\n" for sentence in islice(cycle(sentences), lines))


def watch(
    module: list[str], every: float, *, until: str | None = None, environment: dict[str, str] | None = None
) -> list[Sample]:
    """Run a module with arguments and sample its memory and open files until it ends.

    Args:
        module: its name and its arguments.
        every: seconds between two samples.
        until: a text that the module prints to stderr. It is stopped then.
        environment: variables beside those of this process.

    Raises:
        UserError: it failed (with the last line it printed), or ended before it printed the text.
    """
    samples: list[Sample] = []
    started = time.perf_counter()
    with TemporaryFile("w+") as errors, tqdm(desc=module[0], unit=" samples", disable=not sys.stderr.isatty()) as bar:
        program = psutil.Popen(
            [sys.executable, "-m", *module],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **(environment or {})},
        )
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

    Raises:
        UserError: fewer than four samples.

    Example:
        >>> summary([Sample(float(second), 100 + second, 7) for second in range(8)])["growth"]
        {'rss': 4.0, 'files': 0.0}
    """
    quarter = len(samples) // 4
    if not quarter:
        raise UserError(
            f"every: {len(samples)} samples are too few; give a smaller --every, or more --steps and --lines"
        )
    columns = {name: [asdict(sample)[name] for sample in samples] for name in ("second", "rss", "files")}
    growth = {
        name: statistics.median(columns[name][-quarter:]) - statistics.median(columns[name][quarter : 2 * quarter])
        for name in ("rss", "files")
    }
    return {**columns, "growth": growth}
