"""Train with the arguments of `csezoo.training.train`, sharded on processor cores as on GPUs.

Accelerate shards on GPUs alone: here it is told that its gloo processes are some. If the environment names a
directory as `WHOLE`, the finished run is copied to it, loses its last checkpoint and its results, and is resumed.
"""

import os
import shutil
import sys
from pathlib import Path

from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from csezoo.training.loop.distributed.hosts import wait_for_all
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import load_recipe
from csezoo.training.recipes.reading import parse_overrides
from csezoo.training.train import main

ZERO = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"


def train_and_resume(arguments: list[str], whole: str) -> None:
    """Train, and train the last updates again, in one group of processes."""
    recipe = load_recipe(arguments[0], parse_overrides(arguments[1:]))
    run_recipe(recipe, another=True)
    run = Path(recipe.output_dir or "")
    if PartialState().is_main_process:
        shutil.copytree(run, whole)
        shutil.rmtree(max((run / "checkpoints").iterdir()))
        (run / "results.json").unlink()
    wait_for_all()
    run_recipe(recipe)


if __name__ == "__main__":
    PartialState(cpu=True).distributed_type = DistributedType.DEEPSPEED if ZERO else DistributedType.MULTI_GPU
    if "WHOLE" in os.environ:
        train_and_resume(sys.argv[1:], os.environ["WHOLE"])
    else:
        main(sys.argv[1:])
    expected = DistributedType.DEEPSPEED if ZERO else DistributedType.FSDP
    assert AcceleratorState().distributed_type == expected, "it was not sharded"
    # On processor cores, a process that has finished its run sometimes aborts in its exit.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
