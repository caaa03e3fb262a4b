"""What a search maximises: a score on dev, or a criterion that needs no labels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from ..data.texts import stream_lines
from ..errors import UserError
from ..evaluation.encoders import load_encoder
from ..recipes.keys import DEV_SUITES
from ..reproducing.columns import Column
from ..reproducing.measuring import read_results
from ..reproducing.plan import Run
from .criteria import held_out_loss

UNLABELLED = "unlabelled"
# The columns whose mean is the objective.
COLUMNS: dict[str, list[Column]] = {
    objective: [Column(suite, suite, metric="dev" if suite == "transfer" else None) for suite in suites]
    for objective, suites in DEV_SUITES.items()
} | {UNLABELLED: []}
# Of a run whose objective needs no labels: no dev pairs choose its checkpoint, and none test it.
WITHOUT_LABELS = {"eval_data": "none", "dev_file": None, "test_file": None}


def score(run: Run, objective: str, sentences: Sequence[str]) -> float:
    """Return the objective of a finished run."""
    if objective == UNLABELLED:
        encode, _ = load_encoder(run.model)
        return -held_out_loss(encode, sentences)
    results = read_results(run)
    values = [column.value(results) for column in COLUMNS[objective]]
    return statistics.mean(value for value in values if value is not None)


def read_sentences(path: str | None, number: int = 2000) -> list[str]:
    """Return the first different sentences of a text file, one on each line."""
    if path is None or not Path(path).is_file():
        problem = f"{path} is not a file" if path else "not given"
        raise UserError(f"--sentences: {problem}; give a text file that no run is trained on")
    sentences = dict.fromkeys(line.strip() for line in stream_lines(path) if line.strip())
    if len(sentences) < 2:
        raise UserError(f"--sentences: {path} has {len(sentences)} different sentences; it must have two or more")
    return list(sentences)[:number]
