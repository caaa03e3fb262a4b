"""Tasks on a Ray cluster: `ray.init` finds it, and starts one on this machine where there is none."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..environment import show_log
from ..errors import UserError, one_line, refuse_missing

logger = logging.getLogger(__name__)
# How often a task is started again after its worker or its machine was lost; it then resumes. Machines that are often
# taken away need many retries, but a task that kills its worker each time must end too.
RETRIES = 20


def run_on_ray(work: Callable[[Any], object], tasks: Sequence[Any], launcher: Sequence[str]) -> dict[int, str]:
    """Run `work(task)` for each task on a Ray cluster, in the directory of this process.

    The cluster is that of `RAY_ADDRESS`, or one that `ray start` has started here, or a new one on this machine. All
    machines must share this directory. A task whose worker is lost is started again: it must resume by itself.

    Args:
        work: a function that can be pickled.
        launcher: options of `accelerate launch`: a task gets as many processors, and GPUs if the cluster has some, as
            they ask for processes.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers otherwise
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the coming default; Ray warns without it
    refuse_missing("--on ray", "ray")
    import ray

    processes, on_cpu = processes_of(launcher)
    ray.init(logging_level=logging.WARNING)
    failed = {}
    try:
        gpus = 0 if on_cpu or not ray.cluster_resources().get("GPU") else processes
        remote = ray.remote(num_cpus=processes, num_gpus=gpus, max_retries=RETRIES)(_in_directory)
        numbers = {remote.remote(work, task, os.getcwd()): number for number, task in enumerate(tasks)}
        pending = list(numbers)
        while pending:
            (done,), pending = ray.wait(pending)
            try:
                ray.get(done)
            except (UserError, ray.exceptions.RayError) as error:
                failed[numbers[done]] = one_line(getattr(error, "cause", None) or error)  # without Ray's traceback
            logger.info("%d of %d tasks are done", len(tasks) - len(pending), len(tasks))
    finally:
        ray.shutdown()
    return failed


def _in_directory(work: Callable[[Any], object], task: Any, directory: str) -> None:
    os.chdir(directory)
    show_log(force=True)
    work(task)


def processes_of(launcher: Sequence[str]) -> tuple[int, bool]:
    """Return how many processes `accelerate launch` starts with these options on one machine, and whether on its CPU.

    Example:
        >>> processes_of(["--num_processes", "2"])
        (2, False)
    """
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    options, _ = launch_command_parser().parse_known_args([*launcher, "script"])
    default = default_config_file if Path(default_config_file).is_file() and not options.cpu else None
    path = options.config_file or default  # as `accelerate launch` chooses it
    file = load_config_from_file(path) if path else None
    processes = options.num_processes or (file.num_processes // (file.num_machines or 1) if file else 1)
    return processes, options.cpu or bool(file and file.use_cpu)
