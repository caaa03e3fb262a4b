"""A table as a Slurm job array: one task for each run that is missing, as a script to submit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ..files import replace_file
from .plan import Run
from .runs import launch

SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={directory}/%x-%a.out
# Of each task before its time is over: training ends, and the requeued task resumes it.
#SBATCH --signal=B:TERM@60
{options}
runs=(
{commands}
)
set -m  # training is a process group, which the signal reaches completely
trap 'kill -TERM -- -$!; wait $!; scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"' TERM
eval "${{runs[$SLURM_ARRAY_TASK_ID]}} &"
wait $!
"""


def write_script(
    name: str, runs: Sequence[Run], directory: Path, *, launcher: Sequence[str] = (), options: Sequence[str] = ()
) -> Path:
    """Write the script of a job array that trains runs. A run that is finished when its task starts ends at once.

    Args:
        name: of the item.
        runs: to be trained.
        directory: of the script and of the logs.
        launcher: options of `accelerate launch`.
        options: of `sbatch`, such as `--time=4:00:00`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    commands = "\n".join(f"  {shlex.quote(shlex.join(launch(run, launcher)))}" for run in runs)
    script = directory / "runs.sbatch"
    content = SCRIPT.format(
        name=name.replace("/", "-"),
        last=len(runs) - 1,
        directory=directory.resolve(),
        options="\n".join(f"#SBATCH {option}" for option in options),
        commands=commands,
    )
    replace_file(script, content)
    return script
