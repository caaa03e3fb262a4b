"""Evaluation of any encoder on sentence pairs, every result with its receipt."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from tqdm.auto import tqdm

from .cost import CostTask, load_cost
from .encoded import Encode, Encoded
from .errors import UserError
from .geometry import GeometryTask, load_geometry
from .multilingual import load_chinese, load_spanish, load_sts17
from .releases import check_release
from .results import ResultsFile
from .retrieval import NeighboursTask, RetrievalTask, load_retrieval
from .sts import DEV_TASK, STS_TASKS, PairTask, load_lengths, load_pairs_file, load_task
from .transfer import TRANSFER_TASKS, TransferTask, load_transfer_task

Task = PairTask | TransferTask | RetrievalTask | NeighboursTask | GeometryTask | CostTask
AVERAGE = "average of the tests"
# Each suite's tasks, read from `data`.
SUITES: dict[str, Callable[[str], Sequence[Task]]] = {
    "sts": lambda data: [load_task(name, data) for name in STS_TASKS],
    "sts-dev": lambda data: [load_task(DEV_TASK, data)],
    "transfer": lambda data: [load_transfer_task(name, data) for name in TRANSFER_TASKS],
    "transfer-fast": lambda data: [load_transfer_task(name, data, "fast") for name in TRANSFER_TASKS],
    "sts-length": load_lengths,
    "sts-multilingual": load_sts17,
    "sts-spanish": load_spanish,
    "chinese": load_chinese,
    "geometry": load_geometry,
    "retrieval": load_retrieval,
    "cost": load_cost,
}


def evaluate(
    encode: Encode,
    suites: list[str],
    data: str = "hub",
    *,
    receipt: dict | None = None,
    queries: list[str] | None = None,
    pairs: Sequence[str] = (),
    file: ResultsFile | None = None,
) -> dict:
    """Run suites of tasks on any encoder, one task after another; a bar on a terminal counts them.

    Args:
        encode: texts to vectors, `list[str] -> (n, d)`. Each distinct sentence is asked for once.
        suites: of `sts` (STS12–16, STSBenchmark, SICK-R, all pairs of a task in one Spearman), `sts-dev`, `transfer`
            (MR, CR, SUBJ, MPQA, SST2, TREC, MRPC in SentEval's protocol), `transfer-fast` (SimCSE's quicker one),
            `sts-length` (SICK-R by the words of the shorter sentence), `sts-multilingual` (SemEval-2017 task 1 in
            eleven pairs of languages, Pearson), `sts-spanish` (SemEval-2014 task 10, Pearson), `chinese` (BQ, LCQMC),
            `geometry` (alignment, uniformity, anisotropy), `retrieval` (recall@1, 5, 10 on STS-B test) and `cost`
            (time, tokens per second and memory of encoding).
        data: `hub` or a directory in SentEval's layout.
        receipt: what the caller knows about the encoder (pooling, dtype), kept in every result.
        queries: sentences whose nearest neighbours `retrieval` shows.
        pairs: CSV files of your own (sentence1, sentence2, score), each a task of the suite `pairs`.
        file: results are added to it task by task; a task that it holds under the same receipt is taken from it.

    Returns:
        `{"results": [{"suite", "task", "metric", "value", …receipt}]}`, values times 100.

    Raises:
        UserError: an unknown suite, missing or damaged data, an encoder that gives one vector to everything.

    Example:
        >>> from csezoo.training.evaluation import evaluate_tasks
        >>> from csezoo.training.sts import PairTask
        >>> task = PairTask("toy", [("a", "a"), ("a", "b"), ("a", "ab")], [5, 0, 3], "example")
        >>> letters = lambda texts: np.array([[text.count("a"), text.count("b")] for text in texts], float)
        >>> evaluate_tasks(letters, [task])[0]["value"]
        100.0
    """
    if queries and "retrieval" not in suites:
        raise UserError("queries: their neighbours are shown by the suite retrieval, name it too")
    loaded = load_suites(suites, data)
    if pairs:
        loaded["pairs"] = [load_pairs_file(path) for path in pairs]
    for query in queries or []:
        searches = cast(RetrievalTask, loaded["retrieval"][0])
        loaded["retrieval"].append(NeighboursTask(searches.pairs, query))
    vectors, results = Encoded(encode), []
    tasks = [(suite, task) for suite, tasks in loaded.items() for task in tasks]
    for suite, task in tqdm(tasks, desc="Tasks", disable=not sys.stderr.isatty()):
        about = full_receipt(task, receipt)
        made = file.find({"suite": suite, "task": task.name, **about}) if file else []
        if not made:
            vectors.add(task.sentences())
            made = [{"suite": suite, **result, **about} for result in task.results(vectors)]
            if file:
                file.add(made)
        results += made
    return {"results": results}


def load_suites(suites: Sequence[str], data: str) -> dict[str, list[Task]]:
    """The tasks of each suite, read once."""
    if unknown := [suite for suite in suites if suite not in SUITES]:
        raise UserError(f"suite: {unknown[0]!r} is none of {', '.join(SUITES)}")
    return {suite: list(SUITES[suite](data)) for suite in dict.fromkeys(suites)}


def evaluate_tasks(encode: Encode, tasks: Sequence[Task], *, receipt: dict | None = None) -> list[dict]:
    """Results of each task with their receipts; all distinct sentences of the tasks are encoded in one call."""
    return score(tasks, encode_once(encode, tasks), receipt)


def score(tasks: Sequence[Task], vectors: Encoded, receipt: dict | None) -> list[dict]:
    """Results of each task with their receipts."""
    results = []
    for task in tasks:
        about = full_receipt(task, receipt)
        results += [{**result, **about} for result in task.results(vectors)]
    return results


def encode_once(encode: Encode, tasks: Sequence[Task]) -> Encoded:
    """The vectors of all distinct sentences of the tasks."""
    vectors = Encoded(encode)
    vectors.add({sentence for task in tasks for sentence in task.sentences()})
    return vectors


def full_receipt(task: Task, receipt: dict | None) -> dict[str, object]:
    """What a task's score depends on: its data, the encoder, the versions."""
    own = task.receipt()
    return {**own, **check_release(task.name, own), **(receipt or {}), "versions": versions()}


def versions() -> dict[str, str]:
    """Versions of what a score depends on."""
    names = ("csezoo", "torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {name: importlib.metadata.version(name) for name in names}


def device() -> str:
    """What computes: the accelerator's name, or the processor's kind."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()


def tests_only(results: list[dict]) -> list[dict]:
    """Results on test pairs: dev pairs choose models and take no part in an average."""
    return [result for result in results if result["task"] not in (DEV_TASK, "dev")]


def average(results: list[dict]) -> float:
    """Unweighted mean over the tests, the papers' "Avg."; of dev alone where there are no tests."""
    return float(np.mean([result["value"] for result in tests_only(results) or results]))


def format_table(rows: list[tuple[str, list[dict]]]) -> str:
    """The usual table: a line per model, a column per task, the average of several last; two decimals.

    Example:
        >>> print(format_table([("ours", [{"task": "STS12", "value": 72.366}, {"task": "STS13", "value": 80.0}])]))
        model  STS12  STS13   Avg.
        ours   72.37  80.00  76.18
    """
    header = ["model", *(result["task"] for result in rows[0][1]), "Avg."]
    lines = [[name, *(f"{r['value']:.2f}" for r in results), f"{average(results):.2f}"] for name, results in rows]
    if len(header) == 3:  # the average of one task is that task
        header, lines = header[:-1], [line[:-1] for line in lines]
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in [header, *lines]
    )


def format_report(model: str, results: list[dict]) -> str:
    """What `evaluate` prints: a table for each suite of scores, a line for each other measure, neighbours of queries.

    Args:
        model: how to call it.
        results: of `evaluate`, with their `suite`.
    """
    blocks = []
    for suite in dict.fromkeys(result["suite"] for result in results):
        own = [result for result in results if result["suite"] == suite]
        if suite not in ("geometry", "retrieval", "cost"):
            blocks.append(format_table([(model, own)]))
            continue
        for result in own:
            if result["metric"] == "neighbours":
                nearest = [f"    {found['cosine']:.2f}  {found['sentence']}" for found in result["value"]]
                blocks.append("\n".join([f"  {result['query']}", *nearest]))
            else:
                blocks.append(f"{result['task']}  {result['metric']}  {result['value']:.3f}")
    return "\n".join(blocks)
