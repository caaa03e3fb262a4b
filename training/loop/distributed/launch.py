"""Check how many processes `accelerate launch` started."""

from __future__ import annotations

import os

from ...errors import UserError


def check_launch(processes: int) -> None:
    """Refuse to train on one process if several were requested.

    Raises:
        UserError: accelerate started one process, or several that do not know of each other.
    """
    if processes == 1 and "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE") != "1":
        raise UserError(
            "several processes were requested, but each would train alone (accelerate launch --cpu starts only one, "
            "FSDP and DeepSpeed need GPUs); on CPU use ACCELERATE_USE_CPU=true accelerate launch --multi_gpu "
            "--num_processes N"
        )
