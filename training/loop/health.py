"""Detect a collapsed encoder: equal embeddings, or batch norm channels without variance."""

from __future__ import annotations

import numpy as np
import torch

from ..evaluation.tasks.sts import unit_vectors

# At this spread cosines are above 1 - 1e-8, and only rounding differs.
LEAST_SPREAD = 1e-4


def spread(vectors: np.ndarray) -> float:
    """Return the root mean square distance of vectors `(n, H)` from their mean, after normalisation.

    It is 0 if all vectors point the same way, and at most 1.

    Example:
        >>> spread(np.array([[2.0, 0.0], [9.0, 0.0]])), spread(np.array([[2.0, 0.0], [-9.0, 0.0]]))
        (0.0, 1.0)
    """
    units = unit_vectors(vectors)
    return float(np.sqrt(np.square(units - units.mean(0)).sum(1).mean()))


def dead_channels(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Count the batch norm channels whose running variance is below epsilon.

    Such a channel outputs noise in training and almost nothing at test.

    Returns:
        For each batch norm that has any, by name: the number of such channels, and of all its channels.

    Example:
        >>> norm = torch.nn.BatchNorm1d(3)
        >>> _ = norm.running_var[0].zero_()
        >>> dead_channels(torch.nn.Sequential(norm))
        {'0': (1, 3)}
    """
    counts = {
        name: (int((norm.running_var < norm.eps).sum()), norm.num_features)
        for name, norm in model.named_modules()
        if isinstance(norm, torch.nn.BatchNorm1d) and norm.running_var is not None
    }
    return {name: count for name, count in counts.items() if count[0]}


def warnings(vectors: np.ndarray, model: torch.nn.Module) -> list[str]:
    """Return one line for each sign of collapse.

    Args:
        vectors: embeddings of different sentences.
        model: the training model.
    """
    lines = []
    if (distance := spread(vectors)) < LEAST_SPREAD:
        lines.append(f"the embeddings have collapsed: on dev their distance from the mean is {distance:.1e}")
    for name, (dead, channels) in dead_channels(model).items():
        lines.append(f"batch norm {name}: {dead} of {channels} channels have no variance")
    return lines
