"""The weights of the best updates of a run: files that its checkpoints name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import load_file, save_file

from ...files import flush, remove
from ...hub import sha256
from .soup import Weights


class BestWeights:
    """Serving weights after some updates of a run, a file for each.

    `best/` and the soup are made from these files. A file is deleted only when no checkpoint names it. So a run that
    resumes from any checkpoint has the weights whose scores the checkpoint remembers, whatever was trained after it.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.checksums: dict[int, str] = {}  # SHA-256 of the files, by update

    def write(self, step: int, weights: Weights) -> None:
        """Write the weights after an update."""
        self.directory.mkdir(exist_ok=True)
        partial = self.directory / f".{step}.partial"
        save_file(weights, partial)
        flush(partial)
        os.replace(partial, self.file(step))
        self.checksums[step] = sha256(self.file(step))

    def read(self, step: int) -> Weights:
        return load_file(self.file(step))

    def damage(self, steps: Iterable[int]) -> str | None:
        """Return which of the files of these updates is missing or was changed, or None."""
        for step in sorted(steps):
            if step not in self.checksums or not self.file(step).is_file():
                return f"{self.file(step)} is missing"
            if sha256(self.file(step)) != self.checksums[step]:
                return f"{self.file(step)} has another checksum"
        return None

    def delete_others(self, steps: set[int]) -> None:
        """Delete the files of all updates but these."""
        for file in self.directory.glob("step-*.safetensors"):
            if file not in map(self.file, steps):
                remove(file)

    def file(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}.safetensors"
