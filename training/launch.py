"""How many processes `accelerate launch` really started."""

from __future__ import annotations

import os

from .errors import UserError


def check_launch(processes: int) -> None:
    """Refuse to go on alone where more were asked for.

    Raises:
        UserError: `accelerate launch --cpu --num_processes N` starts one.
    """
    if processes == 1 and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        raise UserError(
            "several processes were asked for and one was started (accelerate launch --cpu does that): on CPU use "
            "ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes N"
        )
