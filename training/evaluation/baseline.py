"""What a run begins with: the scores of its base model, and whether training made it better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import read_json, write_json
from .ranks import load_ranks, save_ranks
from .report import AVERAGE, average, tests_only
from .sentence_vectors import Encode
from .significance import Similarities, paired_bootstrap
from .suites import Task, encode_once, score
from .tasks.neighbours import nearest_sentences
from .tasks.sts import PairTask

BASELINE, BASELINE_RANKS = "baseline.json", "baseline_ranks.npz"  # in the directory of a run
AS_SERVED = "as served"
CHOSE = "dev, which chose the checkpoint"


def keep_baseline(
    directory: Path, name: str, encode: Encode, tasks: Sequence[Task], shown: Sequence[PairTask]
) -> dict[str, Any]:
    """Score the base model before training, and keep the scores in the directory of a run.

    Returns:
        `name`, `results`, and `neighbours`, the nearest sentences.
    """
    vectors = encode_once(encode, tasks)
    near = [row for task in shown for row in nearest_sentences(task, vectors)]
    baseline = {"name": name, "results": score(tasks, vectors, None), "neighbours": near}
    save_ranks(directory / BASELINE_RANKS, _pairs(tasks), vectors, name)
    write_json(directory / BASELINE, baseline)
    return baseline


def read_baseline(directory: Path) -> dict[str, Any]:
    """Return what `keep_baseline` wrote; empty for a run that has none."""
    file = directory / BASELINE
    return read_json(file) if file.is_file() else {}


def gain(directory: Path, tasks: Sequence[Task], vectors: Any, results: list[dict]) -> dict[str, Any]:
    """Compare a trained model with its base model, on the tests of a run or, without any, on dev.

    Args:
        directory: of the run, with its baseline.
        tasks, vectors: dev and tests, and the trained model's vectors of their sentences.
        results: the trained model's, of these tasks.

    Returns:
        `name` of the base model, `of` what, the scores `before` and `now`, and of pairs the figures of
        `paired_bootstrap`; empty without a baseline, without tasks, or if a resumed run has other tasks.
    """
    baseline = read_baseline(directory)
    if not results or _scored(results) != _scored(baseline.get("results", [])):
        return {}
    before, now = average(baseline["results"]), average(results)
    judging = tests_only(results)
    of = AVERAGE if len(judging) > 1 else judging[0]["task"] if judging else CHOSE
    figures: dict[str, Any] = {"name": baseline["name"], "of": of, "before": before, "now": now}
    named = {result["task"] for result in judging or results}
    compared = [task for task in _pairs(tasks) if task.name in named]
    kept = load_ranks(directory / BASELINE_RANKS, compared, baseline["name"])
    if kept and len(compared) == len(named):
        similarities = [
            Similarities(np.array(task.scores), task.similarities(vectors), ranks.astype(float), task.metric)
            for task, ranks in zip(compared, kept, strict=True)
        ]
        figures |= paired_bootstrap(similarities)
    return figures


def _scored(results: list[dict]) -> set[tuple[str, str | None]]:
    return {(result["task"], result.get("sha256")) for result in results}


def gain_line(gain: dict[str, Any]) -> str:
    """Return the figures of `gain` as text.

    Example:
        >>> gain_line({"name": "as served", "of": "test", "before": 86.72, "now": 87.17, "low": 0.12, "high": 0.79})
        'test: as served 86.72, now 87.17: +0.45, 95 % interval +0.12 to +0.79'
        >>> gain_line({"name": "as served", "of": "dev", "before": 86.72, "now": 86.5})
        'dev: as served 86.72, now 86.50: -0.22, not better than as served'
    """
    difference = gain["now"] - gain["before"]
    line = f"{gain['of']}: {gain['name']} {gain['before']:.2f}, now {gain['now']:.2f}: {difference:+.2f}"
    if "low" in gain:
        line += f", 95 % interval {gain['low']:+.2f} to {gain['high']:+.2f}"
    return line if is_better(gain) else f"{line}, not better than {gain['name']}"


def is_better(gain: dict[str, Any]) -> bool:
    """Return whether a trained model is better than its base model by more than chance.

    Example:
        >>> is_better({"before": 80.0, "now": 80.1, "low": -0.3}), is_better({"before": 80.0, "now": 80.1})
        (False, True)
    """
    return gain["now"] > gain["before"] and gain.get("low", 1.0) > 0


def _pairs(tasks: Sequence[Task]) -> list[PairTask]:
    return [task for task in tasks if isinstance(task, PairTask)]
