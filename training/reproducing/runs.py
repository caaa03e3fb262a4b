"""Making runs: each is claimed, trained in a process of its own, and evaluated. What is finished is not done again."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from filelock import FileLock, Timeout

from ..converting.convert import RECEIPT, convert
from ..errors import UserError
from ..evaluation.encoders import load_encoder
from ..evaluation.glue.fine_tuning import FineTuning, run_glue
from ..evaluation.ranks import RANKS, load_ranks, save_ranks
from ..evaluation.results import ResultsFile
from ..evaluation.suites import encode_once, evaluate
from ..evaluation.tasks.sts import PairTask
from ..files import locked_elsewhere, remove
from .columns import GLUE, Column
from .measuring import finished, is_trained, missing_suites, read_results, write_complete
from .plan import Run

logger = logging.getLogger(__name__)

WAIT = 10  # seconds between two looks at a run that another process makes
WATCH = 1  # seconds between two looks at a run that this process trains


def launch(run: Run, launcher: Sequence[str] = ()) -> list[str]:
    """Return the command that trains a run."""
    start = [sys.executable, "-m", "accelerate.commands.launch", *launcher]
    return [*start, "-m", "csezoo.training.train", *run.command()]


def train(run: Run, launcher: Sequence[str] = (), watch: Callable[[], None] | None = None) -> None:
    """Train a run in a process of its own. Its output is in `train.log` in the directory of the run.

    Args:
        launcher: options of `accelerate launch`, such as `--config_file FILE`.
        watch: called every second while the run trains. An error that it raises ends the run.
    """
    run.directory.mkdir(parents=True, exist_ok=True)
    log = run.directory / "train.log"
    command = launch(run, launcher)
    with log.open("a", encoding="utf-8") as output:
        before = output.tell()
        output.write(f"$ {shlex.join(command)}\n")
        output.flush()
        # A group of its own, because accelerate does not pass signals to the processes that it starts.
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while watch and process.poll() is None:
                watch()
                time.sleep(WATCH)
            code = process.wait()
        except BaseException:  # this process is stopped: the others must not continue alone
            _stop(process.pid)
            process.wait()
            raise
    if not is_trained(run):  # results of fewer seeds may be there from an earlier training
        lines = log.read_bytes()[before:].decode(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")] or lines
        raise UserError(f"exit code {code}: {errors[-1].removeprefix('error: ')} ({log})")


def _stop(launcher: int) -> None:
    """Ask a process and all that it has started to end. On Windows no signal reaches a group of processes."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(launcher)
        started = process.children(recursive=True)
        process.terminate()
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.terminate()


def make(
    runs: Sequence[Run],
    columns: Sequence[Column],
    *,
    data: str = "hub",
    transfer_rows: int | None = None,
    glue: dict[str, Any] | None = None,
    pairs: Sequence[PairTask] = (),
    train: Callable[[Run], None] = train,
) -> dict[Path, str]:
    """Train and evaluate runs. Wait for runs that another process is making, and take them over if it ends too early.

    Args:
        pairs: tasks whose `ranks` are kept, so that the row can be compared with another.

    Returns:
        The directories of the runs that failed, with the reason.
    """
    failed: dict[Path, str] = {}
    left = [run for run in runs if not finished(run, columns)]
    while left:
        waiting = []
        for run in left:
            with claimed(run) as mine:
                if not mine:
                    waiting.append(run)
                elif not finished(run, columns):
                    logger.info("%s", run.directory)
                    try:
                        if not is_trained(run):
                            for measured in (run.evaluation, run.glue):  # of weights that are not those of now
                                remove(run.directory / measured)
                            train(run)
                        measure(run, columns, data, transfer_rows, glue or {})
                        if pairs:
                            ranks(run, pairs)
                    except UserError as error:
                        failed[run.directory] = str(error)
                        logger.warning("%s failed: %s", run.directory, error)
        if waiting and len(waiting) == len(left):
            logger.info("waiting for %d runs that another process is making", len(waiting))
            time.sleep(WAIT)
        left = [run for run in waiting if not finished(run, columns)]
    return failed


def make_one(run: Run, **options: Any) -> None:
    """Train and evaluate one run; the options are those of `make`."""
    for reason in make([run], **options).values():
        raise UserError(reason)


def claim(file: Path) -> FileLock | None:
    """Lock a file until this process ends or releases it; return None if another process has locked it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file, timeout=0)
    with suppress(Timeout):
        lock.acquire()
        return lock
    return None


@contextmanager
def claimed(run: Run) -> Iterator[bool]:
    """Claim a run for this process, and tell whether it has been claimed; the claim ends with the process.

    A run that is in training without a claim, for example by `csezoo train`, is left alone too.
    """
    lock = claim(run.directory / ".claim")
    try:
        yield lock is not None and not locked_elsewhere(run.directory)
    finally:
        if lock:
            lock.release()


def measure(run: Run, columns: Sequence[Column], data: str, transfer_rows: int | None, glue: dict[str, Any]) -> None:
    """Evaluate a trained run or a finished model on what is missing. The results are in its directory."""
    missing = missing_suites(run, columns)
    run.directory.mkdir(parents=True, exist_ok=True)
    if suites := [suite for suite, _ in missing if suite != GLUE]:
        encode, receipt = load_encoder(converted(run), pooling=run.pooling)
        file = ResultsFile(run.directory / run.evaluation, run.model, receipt["model_sha256"])
        found = evaluate(encode, suites, data, receipt=receipt, transfer_rows=transfer_rows, file=file)
        write_complete(run, suites, found["results"])
    if tasks := [task for suite, task in missing if suite == GLUE and task]:
        seed = run.recipe.seeds[0] if run.recipe else 42
        settings, where = FineTuning(**{k: v for k, v in glue.items() if k != "data"}), glue.get("data", "hub")
        run_glue(run.model, tasks, where, seeds=[seed], settings=settings, out=run.directory / run.glue)


def ranks(run: Run, tasks: Sequence[PairTask]) -> list[np.ndarray]:
    """Return for each task the ranks of the cosines of its pairs, from 0.

    A run writes them with its results. If they are of the same weights, they are not computed again, so the weights
    may be deleted.
    """
    file = run.directory / RANKS
    scored = next((row["model_sha256"] for row in read_results(run) if "model_sha256" in row), None)
    if (kept := load_ranks(file, tasks, scored)) is not None:
        return kept
    encode, receipt = load_encoder(converted(run), pooling=run.pooling)
    return save_ranks(file, tasks, encode_once(encode, tasks), receipt["model_sha256"])


def converted(run: Run) -> str:
    """Return the directory of the model to evaluate. A released checkpoint is converted to it, once."""
    if run.kind is None:
        return run.model
    target = run.directory / "converted"
    if not (target / RECEIPT).is_file():
        convert(run.model, str(target), kind=run.kind, serving=run.serving, report=logger.info)
    return str(target)
