"""How many processes `accelerate launch` really started."""

from __future__ import annotations

import os

from ...errors import UserError


def check_launch(processes: int) -> None:
    """Refuse to train alone where more were asked for.

    Raises:
        UserError: accelerate started one, or each of several by itself.
    """
    if processes == 1 and "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE") != "1":
        raise UserError(
            "several processes were asked for and each would train alone: accelerate launch --cpu starts one, FSDP "
            "and DeepSpeed need GPUs; on CPU use ACCELERATE_USE_CPU=true accelerate launch --multi_gpu "
            "--num_processes N"
        )
