"""Soak: the memory and the open files of a long run and of a long file's encoding, which must not grow."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import psutil
from tqdm.auto import tqdm

from ..data.texts import load_sentences
from ..errors import UserError
from ..recipes import Recipe, dump_recipe, make_recipe
from .race import machine


@dataclass
class Sample:
    """What a program and its workers held at one moment.

    Args:
        second: since it was started.
        rss: resident bytes.
        files: open file descriptors.
    """

    second: float
    rss: int
    files: int


def benchmark_soak(
    recipe: Recipe, *, steps: int = 3000, lines: int = 1_000_000, every: float = 1.0
) -> dict[str, object]:
    """A run of so many updates, then its model on a file of so many lines, each watched from outside.

    Args:
        recipe: of any method; its sentences, repeated, are the lines.
        steps: updates.
        lines: of the file, which `csezoo encode` turns into Parquet.
        every: seconds between two looks.

    Returns:
        `programs`: of `training` and `encoding`, `second`, `rss` and `files` of each look, and `growth`, as of
        `summary`; the machine.

    Raises:
        UserError: the run or the encoding failed, with the last line it said; or `every` is not above 0.
    """
    if not 0 < every < math.inf:
        raise UserError(f"every: {every} must be above 0")
    keys = {"max_steps": steps, "seeds": recipe.seeds[:1], "report_to": "none"}
    with TemporaryDirectory() as directory:
        file, run, text = (Path(directory) / name for name in ("recipe.yaml", "run", "lines.txt"))
        dump_recipe(make_recipe({**recipe.to_dict(), **keys, "output_dir": str(run)}), file)
        training = watch(["csezoo.training.train", str(file)], every)
        with text.open("w", encoding="utf-8") as written:
            sentences = cycle(load_sentences(recipe)["0"])
            written.writelines(f"{' '.join(sentence.split())}\n" for sentence in islice(sentences, lines))
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


def watch(module: list[str], every: float) -> list[Sample]:
    """Run a module's command and look at it from time to time.

    Raises:
        UserError: it failed, with the last line it said.
    """
    samples: list[Sample] = []
    started = time.perf_counter()
    with TemporaryFile("w+") as said, tqdm(desc=module[0], unit=" looks", disable=not sys.stderr.isatty()) as bar:
        program = psutil.Popen([sys.executable, "-m", *module], stdout=subprocess.DEVNULL, stderr=said)
        while program.poll() is None:
            with suppress(psutil.NoSuchProcess):  # it or a worker has just ended
                family = [program, *program.children(recursive=True)]
                rss = sum(process.memory_info().rss for process in family)
                files = sum(process.num_fds() for process in family)
                samples.append(Sample(time.perf_counter() - started, rss, files))
            bar.update()
            time.sleep(every)
        if program.returncode != 0:
            said.seek(0)
            raise UserError(f"{module[0]} failed: {said.read().strip().splitlines()[-1]}")
    return samples


def summary(samples: list[Sample]) -> dict[str, object]:
    """Samples as columns, and how much more the last quarter of them holds than the second.

    The first quarter warms up: libraries are loaded, caches and the allocator reach their size.

    Raises:
        UserError: too few samples.

    Example:
        >>> summary([Sample(float(second), 100 + second, 7) for second in range(8)])["growth"]
        {'rss': 4.0, 'files': 0.0}
    """
    quarter = len(samples) // 4
    if not quarter:
        raise UserError(f"every: {len(samples)} looks are too few, look more often or let it run longer")
    columns = {name: [asdict(sample)[name] for sample in samples] for name in ("second", "rss", "files")}
    growth = {
        name: statistics.median(columns[name][-quarter:]) - statistics.median(columns[name][quarter : 2 * quarter])
        for name in ("rss", "files")
    }
    return {**columns, "growth": growth}
