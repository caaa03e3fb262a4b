"""The soup of a run: the average of its best checkpoints."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ...errors import UserError
from ...files import remove

logger = logging.getLogger(__name__)
Weights = dict[str, torch.Tensor]


class Soup:
    """The best weights of a run by dev score, and their average (a greedy soup, Wortsman et al. 2022, recipe 1).

    The weights are files, so that a resumed run has them. A checkpoint's counters include `ranked`. A run that repeats
    updates after a resume writes the same files again.

    Args:
        directory: of the files, `soup/` in the directory of a seed.
        size: how many weights to keep.
        ranked: score and step of the weights that are kept, best first.
    """

    def __init__(self, directory: Path, size: int):
        self.directory, self.size = directory, size
        self.ranked: list[tuple[float, int]] = []

    def add(self, score: float, step: int, model: torch.nn.Module, *, write: bool) -> None:
        """Keep the weights after an update if they are among the best. Of equal scores, the first is the better.

        Args:
            score: on dev.
            step: updates so far.
            model: the serving model.
            write: whether this process writes files.
        """
        others = [(other, number) for other, number in self.ranked if number != step]
        ranked = sorted([*others, (score, step)], key=lambda entry: (-entry[0], entry[1]))
        self.ranked = ranked[: self.size]
        if write and (score, step) in self.ranked:
            self.directory.mkdir(exist_ok=True)
            partial = self.directory / f".{step}.partial"
            save_file({name: tensor.cpu().clone() for name, tensor in model.state_dict().items()}, partial)
            os.replace(partial, self._file(step))
        if write:
            for _, dropped in ranked[self.size :]:
                remove(self._file(dropped))

    def cook(self, evaluate: Callable[[Weights], float]) -> tuple[Weights, list[int], float]:
        """Average the weights: begin with the best, and add each next one unless it lowers the dev score.

        Args:
            evaluate: returns the dev score of weights.

        Returns:
            The weights, the steps that they are an average of, and their dev score.
        """
        best, first = self.ranked[0]
        chosen, weights = [first], self._load(first)
        for _, step in self.ranked[1:]:
            mixed = average_weights([self._load(one) for one in (*chosen, step)])
            score = evaluate(mixed)
            logger.info("soup of %d checkpoints: dev %.6g", len(chosen) + 1, score)
            if score >= best:
                chosen, weights, best = [*chosen, step], mixed, score
        return weights, chosen, best

    def _file(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}.safetensors"

    def _load(self, step: int) -> Weights:
        try:
            return load_file(self._file(step))
        except OSError as error:
            raise UserError(
                f"soup: {self._file(step)} is missing; delete the run and train again, or use --soup 0 --force"
            ) from error


def average_weights(states: Sequence[Weights]) -> Weights:
    """Return the mean of each tensor, computed in float64 and of the tensor's type. Integers are those of the first.

    Example:
        >>> average_weights([{"a": torch.tensor([1.0])}, {"a": torch.tensor([2.0])}])
        {'a': tensor([1.5000])}
    """
    first = states[0]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }
