"""Tasks as a Slurm job array, by `submitit`. A task that is preempted, or over its time, is queued again."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, one_line, refuse_missing

logger = logging.getLogger(__name__)
WAIT = 10  # seconds between two looks at the queue
TIME = "4:00:00"  # of a task where the options give none
# Options of sbatch that submitit sets, and needs to queue a task again.
OWN = ("signal", "requeue", "no-requeue", "job-name")
REQUEUES = 1000  # of a task that is over its time
# Minutes. Slurm signals a task up to two and a half minutes before its end, and it must have begun by then.
LEAST_TIME = 5


@dataclass
class Resuming:
    """What a job runs. submitit calls `checkpoint` when the job gets a signal, and queues the job again."""

    work: Callable[[Any], object]
    directory: str

    def __call__(self, task: Any) -> str | None:
        """Run the task, and return the reason if it fails."""
        os.chdir(self.directory)
        logging.getLogger("csezoo").setLevel(logging.INFO)
        try:
            self.work(task)
        except UserError as error:
            return str(error)
        return None

    def checkpoint(self, task: Any) -> Any:
        """Return what the queued job runs: the same, because it resumes by itself."""
        from submitit.helpers import DelayedSubmission

        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends more of them when the job is queued again
        return DelayedSubmission(self, task)


def run_on_slurm(
    work: Callable[[Any], object], tasks: Sequence[Any], folder: Path, *, name: str, options: Sequence[str]
) -> dict[int, str]:
    """Submit `work(task)` for each task as one job array, and wait until the queue has none of them.

    If this process ends, the jobs stay in the queue. The next call with the same folder waits for them first. All
    machines must share the folder and the directory of this process.

    Args:
        work: a function that can be pickled, and that resumes by itself when it is called again.
        options: of `sbatch`, such as `--qos=low`.

    Returns:
        The numbers of the tasks that failed, with the reason.
    """
    # Training ends cleanly on SIGTERM. The default, SIGUSR2, would kill it.
    os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "TERM")
    refuse_missing("--on slurm", "submitit")
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder = folder.resolve()
    full_name = f"{name.replace('/', '-')}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    try:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=REQUEUES)
    except RuntimeError:
        raise UserError("--on slurm: there is no srun here; start the command where Slurm is installed") from None
    _wait(full_name)
    executor.update_parameters(job_name=full_name, **_parameters(options))
    try:
        jobs = executor.map_array(Resuming(work, os.getcwd()), tasks)
    except (FailedJobError, FailedSubmissionError) as error:
        raise UserError(f"--sbatch: Slurm refused the jobs: {one_line(error)}") from error
    logger.info("%s: %d tasks in the queue; scancel --name %s stops them", full_name, len(jobs), full_name)
    _wait(full_name)
    failed = {}
    for number, job in enumerate(jobs):
        try:
            reason = job.result() if job.paths.result_pickle.is_file() else "the job ended without a result"
        except FailedJobError as error:
            reason = one_line(str(error).rpartition("Error: ")[2])
        if reason:
            failed[number] = f"{reason} ({job.paths.stderr})"
    return failed


def _wait(name: str) -> None:
    """Wait until no job of this name is in the queue. The queue is asked, because not all clusters have accounting."""
    before, states = None, _states(name)
    while states:
        counts = ", ".join(f"{states.count(state)} {state.lower()}" for state in sorted(set(states)))
        if counts != before:
            logger.info("%s: %s", name, counts)
        before = counts
        time.sleep(WAIT)
        try:
            states = _states(name)
        except UserError as error:  # the controller may be restarting
            logger.warning("%s", error)


def _states(name: str) -> list[str]:
    """Return the states of the tasks of this name in the queue."""
    command = ["squeue", "--noheader", "--array", f"--name={name}", "--format=%T"]
    asked = subprocess.run(command, capture_output=True, text=True)
    if asked.returncode:
        raise UserError(f"--on slurm: squeue failed: {one_line(asked.stderr)}")
    return asked.stdout.split()


def _parameters(options: Sequence[str]) -> dict[str, Any]:
    """Return options of `sbatch` as submitit takes them; it needs the time in minutes."""
    given: dict[str, Any] = {"time": TIME}
    for option in options:
        key, equals, value = option.removeprefix("--").partition("=")
        if not option.startswith("--"):
            raise UserError(f"--sbatch: {option!r} must be --KEY=VALUE or --KEY")
        if key in OWN:
            raise UserError(f"--sbatch: csezoo sets --{key} itself; leave it out")
        given[key] = value if equals else True
    limit, array = str(given.pop("time")), str(given.pop("array", "%256"))  # tasks at a time, as submitit's default
    if not re.fullmatch(r"%[1-9]\d*", array):
        raise UserError(
            f"--sbatch: csezoo numbers the tasks itself, got --array={array}; give --array=%N, N at a time"
        )
    if (minutes := minutes_of(limit)) < LEAST_TIME:
        raise UserError(f"--sbatch: time {limit} is too short to be queued again; give {LEAST_TIME} minutes or more")
    return {"time": minutes, "array_parallelism": int(array[1:]), "additional_parameters": {"requeue": True, **given}}


def minutes_of(time: str) -> int:
    """Return a time limit of Slurm in minutes, rounded up.

    Example:
        >>> minutes_of("90"), minutes_of("4:00:00"), minutes_of("1-12"), minutes_of("0:30")
        (90, 240, 2160, 1)
    """
    days, dash, rest = time.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if len(parts) > 3:
            raise ValueError
        if dash or len(parts) == 3:  # days-hours, days-hours:minutes, [days-]hours:minutes:seconds
            hours, minutes, seconds = (*parts, 0, 0)[:3]
        else:  # minutes, minutes:seconds
            hours, (minutes, seconds) = 0, (*parts, 0)[:2]
        return -(-((int(days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds) // 60)
    except ValueError:
        raise UserError(f"--sbatch: time {time!r} must be minutes, or hours:minutes:seconds") from None
