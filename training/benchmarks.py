"""Benchmarks: a part of the zoo timed against the usual way to do the same work, in turns in one process."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from csezoo.modeling.encoding import load_tokenizer

from .encoded import Encode
from .encoders import load_checkpoint, load_encoder, plain_encoder
from .errors import UserError
from .evaluation import device, evaluate_tasks, versions
from .senteval import find_senteval, read_subset
from .statistics import spearman
from .sts import STS_TASKS, SUBSETS, PairTask, load_task, unit_vectors

Row = tuple[str, str, float]  # two sentences and their gold score
SENTEVAL_BATCH = 128  # as SimCSE's evaluation, and all that follow it, set it


def race(ours: Callable[[], object], usual: Callable[[], object], *, repeats: int = 5) -> dict[str, Any]:
    """Time two ways to do one thing, in turns, so that a busy machine slows both.

    Args:
        ours, usual: the two.
        repeats: turns; which of them goes first alternates.

    Returns:
        `seconds`, those of each turn of both; `median` of both; `ratio`, our median to the usual one; and `cpu_ratio`,
        that of processor time, which other processes disturb less.

    Raises:
        UserError: fewer than one turn.

    Example:
        >>> made = race(lambda: None, lambda: time.sleep(0.01), repeats=3)
        >>> len(made["seconds"]["usual"]), made["ratio"] < 0.5, made["cpu_ratio"] > 0
        (3, True, True)
    """
    if repeats < 1:
        raise UserError(f"repeats: {repeats} must be at least 1")
    seconds: dict[str, list[float]] = {"ours": [], "usual": []}
    cpu_seconds: dict[str, list[float]] = {"ours": [], "usual": []}
    for turn in tqdm(range(repeats), desc="Turns", disable=not sys.stderr.isatty()):
        for name, run in sorted({"ours": ours, "usual": usual}.items(), reverse=turn % 2 == 1):
            started, cpu_started = time.perf_counter(), time.process_time()
            run()
            seconds[name].append(time.perf_counter() - started)
            cpu_seconds[name].append(time.process_time() - cpu_started)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    cpu_ratio = statistics.median(cpu_seconds["ours"]) / statistics.median(cpu_seconds["usual"])
    return {"seconds": seconds, "median": median, "ratio": median["ours"] / median["usual"], "cpu_ratio": cpu_ratio}


def benchmark_sts(
    model: str, pooling: str | None, data: str, *, tasks: Sequence[str] = STS_TASKS, repeats: int = 5
) -> dict[str, object]:
    """The suite `sts` against the way a SentEval run encodes the same pairs with the same encoder.

    SentEval encodes task by task and sub-set by sub-set, both sides of 128 pairs at a time; it sorts the sub-sets of
    STS12–16 by length and leaves STS-B and SICK-R as they are. What it encodes beside the scored pairs (train and dev
    of STS-B and SICK) is left out here, in its favour.

    Args:
        model, pooling: as of `load_encoder`; of the zoo, or a plain encoder.
        data: a directory in SentEval's layout.
        tasks: names; those of the suite unless fewer are given.
        repeats: turns.

    Returns:
        `race`'s figures; `difference`, the largest between the two ways' scores; the encoder's receipt; the machine.

    Raises:
        UserError: the data is missing or damaged, a task is none of the suite, or the model cannot be loaded.
    """
    if unknown := [name for name in tasks if name not in STS_TASKS]:
        raise UserError(f"tasks: {unknown[0]!r} is none of {', '.join(STS_TASKS)}")
    root = find_senteval(data).root
    suite = [load_task(name, data) for name in tasks]
    usual = [senteval_order(task, root) for task in suite]
    encode, receipt = load_encoder(model, pooling=pooling, batch_size=SENTEVAL_BATCH)
    if receipt["kind"] == "sentence-transformers":
        raise UserError(f"{model} brings modules of sentence-transformers: give a model of the zoo or a plain one")
    encode_batch = plain_pass(model, pooling)
    for warm in (encode, encode_batch):
        warm(sorted(suite[0].sentences())[:SENTEVAL_BATCH])  # the first pass of a process is slower than any other
    scores: dict[str, list[float]] = {}

    def run_suite() -> None:
        scores["ours"] = [result["value"] for result in evaluate_tasks(encode, suite)]

    def run_senteval() -> None:
        scores["usual"] = [score_as_senteval(encode_batch, subsets) for subsets in usual]

    figures = race(run_suite, run_senteval, repeats=repeats)
    difference = float(np.abs(np.subtract(scores["ours"], scores["usual"])).max())
    return {
        "benchmark": "sts",
        "tasks": list(tasks),
        **figures,
        "difference": difference,
        **receipt,
        "machine": machine(),
    }


def plain_pass(model: str, pooling: str | None) -> Encode:
    """A batch as evaluation scripts encode it: tokenised and padded as it comes, one forward pass."""
    if pooling is None:
        encoder = load_checkpoint(model).eval()
        tokenizer = load_tokenizer(encoder)
    else:
        encoder, tokenizer = plain_encoder(model, pooling)
    encoder.to("cuda" if torch.cuda.is_available() else "cpu")

    @torch.inference_mode()
    def encode(texts: list[str]) -> np.ndarray:
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(encoder.device)
        return encoder(**batch).pooler_output.cpu().numpy()

    return encode


def senteval_order(task: PairTask, root: Path) -> list[list[Row]]:
    """The sub-sets of a task, each with its pairs in the order that SentEval encodes them in."""
    if task.name not in SUBSETS:
        return [[(*pair, score) for pair, score in zip(task.pairs, task.scores, strict=True)]]
    folder = root / "STS" / f"{task.name}-en-test"
    subsets = [read_subset(folder, subset) for subset in SUBSETS[task.name]]
    return [sorted(rows, key=lambda row: (len(row[0].split()), len(row[1].split()), row[2])) for rows in subsets]


def score_as_senteval(encode: Encode, subsets: list[list[Row]]) -> float:
    """Spearman × 100 over all sub-sets, encoded batch by batch, first one side, then the other."""
    cosines: list[np.ndarray] = []
    gold: list[float] = []
    for rows in subsets:
        for start in range(0, len(rows), SENTEVAL_BATCH):
            first, second, scores = zip(*rows[start : start + SENTEVAL_BATCH], strict=True)
            sides = [unit_vectors(encode(list(side))) for side in (first, second)]
            cosines.append((sides[0] * sides[1]).sum(1))
            gold += scores
    return float(spearman(np.concatenate(cosines)[None], np.array(gold)[None])[0])


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    about = {"device": device(), "system": platform.platform(), "cpus": os.cpu_count()}
    return {**about, "threads": torch.get_num_threads(), "versions": versions()}


def format_benchmark(report: dict) -> str:
    """What `benchmark` prints, a line for each of its sets where it has some.

    Example:
        >>> figures = {"median": {"ours": 6.0, "usual": 10.0}, "seconds": {"ours": [6.0]}, "ratio": 0.6}
        >>> print(format_benchmark({**figures, "cpu_ratio": 0.59, "benchmark": "sts", "speedup": 1.7}))
        sts: 6.00 s against 10.00 s (medians of 1), ratio 0.600 (of processor time 0.590); 1.70 times the sentences
    """
    if "sets" in report:
        sets = {f"{report['benchmark']}, {name}": figures for name, figures in report["sets"].items()}
        return "\n".join(format_benchmark({**figures, "benchmark": name}) for name, figures in sets.items())
    if "axes" in report:
        points = [(axis, value, point) for axis, values in report["axes"].items() for value, point in values.items()]
        return "\n".join(
            f"{axis} {value}: {point['rows per second']:.1f} rows a second" for axis, value, point in points
        )
    if "programs" in report:
        return "\n".join(_format_program(name, made) for name, made in report["programs"].items())
    median, turns = report["median"], len(report["seconds"]["ours"])
    line = (
        f"{report['benchmark']}: {median['ours']:.2f} s against {median['usual']:.2f} s (medians of {turns}), "
        f"ratio {report['ratio']:.3f} (of processor time {report['cpu_ratio']:.3f})"
    )
    return line + "".join(f"; {said.format(report[key])}" for key, said in SAID.items() if key in report)


def _format_program(name: str, made: dict) -> str:
    memory, growth = max(made["rss"]) / 2**20, made["growth"]["rss"] / 2**20
    return (
        f"{name}: {memory:,.0f} MiB and {max(made['files'])} open files at most; the last quarter of its time holds "
        f"{growth:+,.1f} MiB and {made['growth']['files']:+,.0f} files against the second"
    )


# What some benchmarks say beside their times.
SAID = {
    "difference": "they differ by {:.1e} at most",
    "floor": "{:.3f} by counted operations",
    "speedup": "{:.2f} times the sentences",
    "seconds for 10^6 sentences": "10^6 sentences in {:,.0f} s",
}
