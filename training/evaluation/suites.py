"""Evaluation of any encoder on sentence pairs, every result with its receipt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import cast

from tqdm.auto import tqdm

from ..environment import versions
from ..errors import UserError
from .encoded import Encode, Encoded
from .results import ResultsFile
from .tasks.encoding_cost import CostTask, load_cost
from .tasks.geometry import GeometryTask, load_geometry
from .tasks.multilingual import load_chinese, load_spanish, load_sts17
from .tasks.releases import check_release
from .tasks.retrieval import NeighboursTask, RetrievalTask, load_retrieval
from .tasks.sts import DEV_TASK, STS_TASKS, PairTask, load_lengths, load_pairs_file, load_task
from .tasks.transfer import TRANSFER_TASKS, TransferTask, load_transfer_task

Task = PairTask | TransferTask | RetrievalTask | NeighboursTask | GeometryTask | CostTask
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
        >>> from csezoo.training.evaluation.tasks.sts import PairTask
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
