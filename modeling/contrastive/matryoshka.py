"""Matryoshka representation learning: the first dimensions of a vector are trained to be a vector of their own.

References:
    Kusupati et al. 2022, "Matryoshka Representation Learning", section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    # only for types: that file imports this one
    from .training_model import ForContrastiveLearning


def matryoshka_losses(
    model: ForContrastiveLearning, input_ids: torch.Tensor, pooled: torch.Tensor, embeddings: torch.Tensor
) -> dict[str, tuple[float, torch.Tensor]]:
    r"""Return the method's contrastive loss on the first dimensions of the served vectors, with its weight.

    With the served vectors :math:`F`, the widths m of `matryoshka_dims` and their weights c, these losses add

    .. math:: \sum_m c_m L(W^{(m)} F_{1:m})

    to the loss of the complete vectors (eq. 1 of the paper, whose L is a classifier's). W is the projection that is
    dropped at test. It is shared by all widths, and :math:`W^{(m)}` is its part for the first m dimensions (MRL-E in
    the paper). If the projection is served, or there is none, the loss compares :math:`F_{1:m}` directly.

    Args:
        model: its configuration has the widths and weights.
        input_ids: `(B, V, T)`, of this process's sentences that count.
        pooled, embeddings: `(B, V, H)`, their vectors before and after the projection.

    Returns:
        A loss and its weight for each width, by the names `matryoshka_64`, ...; empty without `matryoshka_dims`.

    Relations:
        `MatryoshkaLoss` of sentence-transformers also lists the complete width. Here it has `contrastive_weight`.

    Example:
        >>> from transformers import BertConfig
        >>> from csezoo.modeling import SimCSEConfig, SimCSEForContrastiveLearning
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> config = SimCSEConfig(backbone_config=tiny, matryoshka_dims=[2, 4], matryoshka_weights=[0.5, 1.0])
        >>> ids = torch.randint(9, (3, 2, 6))
        >>> list(SimCSEForContrastiveLearning(config)(input_ids=ids).losses)
        ['contrastive', 'matryoshka_2', 'matryoshka_4']
    """
    config = model.config
    dims = config.matryoshka_dims or []
    duplicates = model.duplicates(input_ids) if dims else None
    losses = {}
    for dim, weight in zip(dims, config.matryoshka_weights or [1.0] * len(dims), strict=True):
        if config.projection_at_test:
            short = embeddings[..., :dim]
        else:
            short = model.project(F.pad(pooled[..., :dim], (0, pooled.shape[-1] - dim)))
        losses[f"matryoshka_{dim}"] = (weight, model.contrastive_loss(short, duplicates))
    return losses
