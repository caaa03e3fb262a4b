"""Signs that an encoder has collapsed: all embeddings alike, channels of a batch norm that no longer vary."""

from __future__ import annotations

import numpy as np
import torch

from ..evaluation.tasks.sts import unit_vectors

# Cosines above 1 - 1e-8: what still differs is rounding.
LEAST_SPREAD = 1e-4


def spread(vectors: np.ndarray) -> float:
    """Root mean square distance of unit vectors `(n, H)` from their mean: 0 where all are equal, at most 1.

    Args:
        vectors: of any length.

    Example:
        >>> spread(np.array([[2.0, 0.0], [9.0, 0.0]])), spread(np.array([[2.0, 0.0], [-9.0, 0.0]]))
        (0.0, 1.0)
    """
    units = unit_vectors(vectors)
    return float(np.sqrt(np.square(units - units.mean(0)).sum(1).mean()))


def dead_channels(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Batch norms with channels whose running variance has fallen below their epsilon: name to how many, of how many.

    Such a channel gives noise in training and next to nothing at test.

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
    """What looks collapsed, a line each.

    Args:
        vectors: embeddings of different sentences.
        model: that is trained.
    """
    lines = []
    if (distance := spread(vectors)) < LEAST_SPREAD:
        lines.append(f"the embeddings have collapsed: those of dev are {distance:.1e} apart on the unit sphere")
    for name, (dead, channels) in dead_channels(model).items():
        lines.append(f"batch norm {name}: {dead} of {channels} channels have no variance left")
    return lines
