"""Stop at a loss or gradient that is not finite, and keep the update: its step, its rows and how to repeat it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from ..errors import UserError
from ..files import write_json


class NonFinite(Exception):
    """The first update whose loss or gradient is not finite, with its loss, its parts and `gradient_norm`."""

    def __init__(self, step: int, values: dict[str, float]):
        super().__init__(step, values)
        self.step, self.values = step, values


def keep_batch(
    directory: Path,
    found: NonFinite,
    batches: list[dict[str, object]],
    rows: dict[str, list[int]],
    checkpoint: Path | None,
    process: int,
) -> UserError:
    """Write `batch-PROCESS.safetensors` and `report.json`, and return the error that ends the run.

    Args:
        found: the first update that is not finite.
        batches: this process's share of the update's batches.
        rows: row numbers of all processes, in the training data and in the labelled data.
        checkpoint: the newest of the run, from before the update. On a CPU, resuming from it is bit-exact and repeats
            the update. On a GPU, sums in another order can round it differently.
    """
    name, value = next((name, value) for name, value in found.values.items() if not abs(value) < float("inf"))
    beginning = f"resumes from {checkpoint}" if checkpoint else "starts again"
    replay = f"the same command with --log_steps 1 {beginning} and stops at this step"
    tensors = {
        f"{number}.{key}": tensor
        for number, batch in enumerate(batches)
        for key, tensor in batch.items()
        if isinstance(tensor, torch.Tensor)
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / f"batch-{process}.safetensors")
    if process == 0:
        values = {name: str(value) for name, value in found.values.items()}  # JSON has no NaN
        write_json(directory / "report.json", {"step": found.step, **values, "rows": rows, "replay": replay})
    first_rows = "; ".join(f"{kind} {', '.join(map(str, numbers[:5]))} …" for kind, numbers in rows.items())
    where = f"step {found.step} ({first_rows})" if first_rows else f"step {found.step}"
    return UserError(
        f"the {name.replace('_', ' ')} is {value} at {where}; lower --learning_rate, "
        f"or try --mixed_precision no. The batch is in {directory}; {replay}"
    )
