"""The soup of a run: the average of its best checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

logger = logging.getLogger(__name__)
Weights = dict[str, torch.Tensor]


class Soup:
    """The best weights of a run by dev score, and their average (a greedy soup, Wortsman et al. 2022, recipe 1).

    Args:
        size: how many weights to keep.
    """

    def __init__(self, size: int):
        self.size = size
        self.ranked: list[tuple[float, int]] = []  # score and step of the weights that are kept, best first

    def rank(self, score: float, step: int) -> None:
        """Rank the weights after an update. Of equal scores, the first is the better."""
        ranked = [*self.ranked, (score, step)]
        self.ranked = sorted(ranked, key=lambda entry: (-entry[0], entry[1]))[: self.size]

    def average(
        self, read: Callable[[int], Weights], evaluate: Callable[[Weights], float]
    ) -> tuple[Weights, list[int], float]:
        """Average the weights: begin with the best, and add each next one unless it lowers the dev score.

        Returns:
            The weights, the steps that they are an average of, and their dev score.
        """
        best, first = self.ranked[0]
        chosen, weights = [first], read(first)
        for _, step in self.ranked[1:]:
            mixed = average_weights([read(one) for one in (*chosen, step)])
            score = evaluate(mixed)
            logger.info("soup of %d checkpoints: dev %.6g", len(chosen) + 1, score)
            if score >= best:
                chosen, weights, best = [*chosen, step], mixed, score
        return weights, chosen, best


def average_weights(states: Sequence[Weights]) -> Weights:
    """Return the mean of each tensor, computed in float64, in the tensor's type. Integers are the first ones."""
    first = states[0]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }
