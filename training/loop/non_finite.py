"""What a run leaves where its loss or gradient is not finite: which update, on which rows, how to see it again."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from ..errors import UserError
from ..files import write_json


class NonFinite(Exception):
    """A loss or gradient that is not finite.

    Args:
        step: the first update it was met in.
        values: loss, its parts and `gradient_norm` of that update.
    """

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
    """Write `batch-PROCESS.safetensors` and `report.json`, and make the line that ends the run.

    Args:
        directory: of this update's files.
        batches: this process's share of the update's batches.
        rows: numbers of the rows of all processes, of the training data and of the labelled data.
        checkpoint: the newest of the run, from before the update; training goes on from it bit for bit, so that is
            where the update is seen again.
    """
    name, value = next((name, value) for name, value in found.values.items() if not abs(value) < float("inf"))
    beginning = f"goes on from {checkpoint}" if checkpoint else "begins again"
    replay = f"the same command with --log_steps 1 {beginning} and stops right there"
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
    some = "; ".join(f"{kind} {', '.join(map(str, numbers[:5]))} …" for kind, numbers in rows.items())
    return UserError(
        f"the {name.replace('_', ' ')} is {value} at step {found.step}{f' ({some})' if some else ''}: lower "
        f"--learning_rate, or try --mixed_precision no. Its batch is in {directory}; {replay}"
    )
