"""Evaluate any encoder on suites of tasks; every result carries its receipt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import cast

from tqdm.auto import tqdm

from ..environment import versions
from ..errors import UserError
from .results import ResultsFile
from .sentence_vectors import Encode, SentenceVectors
from .tasks.edits import EditTask, load_edits
from .tasks.encoding_cost import CostTask
from .tasks.geometry import GeometryTask
from .tasks.multilingual import load_chinese, load_spanish, load_sts17
from .tasks.names import DEV_TASK, SICKR_DEV_TASK, STS_TASKS, TRANSFER_TASKS
from .tasks.releases import compare_with_release
from .tasks.retrieval import NeighboursTask, RetrievalTask
from .tasks.sts import PairTask, load_lengths, load_pairs_file, load_task
from .tasks.transfer import TransferTask, load_transfer_task, load_trec_lengths

Task = PairTask | TransferTask | RetrievalTask | NeighboursTask | GeometryTask | CostTask | EditTask
# Each suite's tasks, read from `data`.
LOADERS: dict[str, Callable[[str], Sequence[Task]]] = {
    "sts": lambda data: [load_task(name, data) for name in STS_TASKS],
    "sts-dev": lambda data: [load_task(DEV_TASK, data)],
    "sickr-dev": lambda data: [load_task(SICKR_DEV_TASK, data)],
    "transfer": lambda data: [load_transfer_task(name, data) for name in TRANSFER_TASKS],
    "transfer-fast": lambda data: [load_transfer_task(name, data, "fast") for name in TRANSFER_TASKS],
    "transfer-mlp": lambda data: [load_transfer_task(name, data, "mlp") for name in TRANSFER_TASKS],
    "trec-length": load_trec_lengths,
    "sts-length": load_lengths,
    "sts-multilingual": load_sts17,
    "sts-spanish": load_spanish,
    "chinese": load_chinese,
    "geometry": lambda data: [GeometryTask(load_task("STSBenchmark", data))],
    "retrieval": lambda data: [RetrievalTask(load_task("STSBenchmark", data))],
    "cost": lambda data: [CostTask(load_task("STSBenchmark", data))],
    "edits": load_edits,
}


def evaluate(
    encode: Encode,
    suites: list[str],
    data: str = "hub",
    *,
    receipt: dict | None = None,
    queries: list[str] | None = None,
    pairs: Sequence[str] = (),
    transfer_rows: int | None = None,
    file: ResultsFile | None = None,
) -> dict:
    """Evaluate an encoder on suites, one task after another. On a terminal, a bar counts the tasks.

    Args:
        encode: texts to vectors, `list[str] -> (n, d)`. Each distinct sentence is encoded once.
        suites: any of `sts` (STS12–16, STSBenchmark, SICK-R; one Spearman over all pairs of a task), `sts-dev` and
            `sickr-dev` (the dev pairs of STS-B and SICK-R), `transfer` (MR, CR, SUBJ, MPQA, SST2, TREC, MRPC in
            SentEval's protocol), `transfer-fast` (SimCSE's faster one), `transfer-mlp` (a classifier with 50 hidden
            units), `trec-length` (TREC without short questions), `sts-length` (SICK-R by the words of the shorter
            sentence), `sts-multilingual` (SemEval-2017 task 1, eleven language pairs, Pearson), `sts-spanish`
            (SemEval-2014 task 10, Pearson), `chinese` (BQ, LCQMC), `geometry` (alignment, uniformity, anisotropy),
            `retrieval` (recall@1, 5, 10 on STS-B test), `cost` (time, tokens per second and memory of encoding) and
            `edits` (cosines of sentences and their edited copies).
        data: `hub` or a directory in SentEval's layout.
        receipt: what the vectors depend on, as far as the caller knows (pooling, dtype); copied to every result.
        queries: sentences whose nearest neighbours `retrieval` shows.
        pairs: CSV files with the columns sentence1, sentence2, score; each becomes a task of the suite `pairs`.
        transfer_rows: most rows of each part of a transfer task; all by default.
        file: the results file to add to, task by task. A task with the same receipt is read from it, not run again.

    Returns:
        `{"results": [{"suite", "task", "metric", "value", …receipt}]}`, values times 100.

    Raises:
        UserError: a suite is unknown, data is missing or damaged, or the encoder returns one vector for all sentences.
    """
    if queries and "retrieval" not in suites:
        raise UserError("queries: only the suite retrieval shows neighbours; add retrieval to --suite")
    loaded = load_suites(suites, data)
    if pairs:
        loaded["pairs"] = [load_pairs_file(path) for path in pairs]
        names = [task.name for task in loaded["pairs"]]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise UserError(f"pairs: two files have the name {repeated[0]}, by which a score is found; rename one")
    for query in queries or []:
        searches = cast(RetrievalTask, loaded["retrieval"][0])
        loaded["retrieval"].append(NeighboursTask(searches.pairs, query))
    vectors, results = SentenceVectors(encode), []
    tasks = [(suite, task) for suite, tasks in loaded.items() for task in tasks]
    if transfer_rows is not None:
        tasks = [(suite, t.limited(transfer_rows) if isinstance(t, TransferTask) else t) for suite, t in tasks]
    for suite, task in tqdm(tasks, desc="Tasks", disable=not sys.stderr.isatty()):
        task_receipt = full_receipt(task, receipt)
        key = {"suite": suite, "task": task.name, **task_receipt}
        rows = file.find(key) if file else []
        if not rows:
            vectors.add(task.sentences())
            rows = [{"suite": suite, **result, **task_receipt} for result in task.results(vectors)]
            if file:
                rows = file.add(rows, key)
        results += rows
    return {"results": results}


def load_suites(suites: Sequence[str], data: str) -> dict[str, list[Task]]:
    """Read the tasks of each suite; a suite named twice is read once."""
    if unknown := [suite for suite in suites if suite not in LOADERS]:
        raise UserError(f"suite: {unknown[0]!r} must be one of {', '.join(LOADERS)}")
    return {suite: list(LOADERS[suite](data)) for suite in dict.fromkeys(suites)}


def evaluate_tasks(encode: Encode, tasks: Sequence[Task], *, receipt: dict | None = None) -> list[dict]:
    """Return the results of each task with their receipts. All distinct sentences are encoded in one call.

    Example:
        >>> from csezoo.training.evaluation.tasks.sts import PairTask
        >>> task = PairTask("toy", [("a", "a"), ("a", "b"), ("a", "ab")], [5, 0, 3], "example")
        >>> letters = lambda texts: np.array([[text.count("a"), text.count("b")] for text in texts], float)
        >>> evaluate_tasks(letters, [task])[0]["value"]
        100.0
    """
    return score(tasks, encode_once(encode, tasks), receipt)


def score(tasks: Sequence[Task], vectors: SentenceVectors, receipt: dict | None) -> list[dict]:
    """Return the results of each task with their receipts."""
    results = []
    for task in tasks:
        task_receipt = full_receipt(task, receipt)
        results += [{**result, **task_receipt} for result in task.results(vectors)]
    return results


def encode_once(encode: Encode, tasks: Sequence[Task]) -> SentenceVectors:
    """Encode all distinct sentences of the tasks in one call."""
    vectors = SentenceVectors(encode)
    vectors.add({sentence for task in tasks for sentence in task.sentences()})
    return vectors


def full_receipt(task: Task, receipt: dict | None) -> dict[str, object]:
    """Return everything that a task's score depends on: its data, the encoder, the library versions."""
    data = task.receipt()
    return {**data, **compare_with_release(task.name, data), **(receipt or {}), "versions": versions()}
