"""Detect vectors that mean nothing: equal views, vectors that depend on padding, and a collapsed encoder."""

from __future__ import annotations

import logging

import numpy as np
import torch
from accelerate import Accelerator

from csezoo.modeling.contrastive.backbones import dropout_fields

from ..errors import UserError
from ..evaluation.tasks.sts import unit_vectors
from ..loading.backbones import PADDING_MOVES, padding_moves
from ..recipes import Recipe
from .building import Build
from .precision import precision_of

logger = logging.getLogger(__name__)
SOLVED = 1e-3  # a loss so low that almost every sentence is found among its batch
# At this spread cosines are above 1 - 1e-8, and only rounding differs.
LEAST_SPREAD = 1e-4
# Largest relative distance of two views that differ only by rounding, in float32 and in half precision. A dropout of
# 0.01 moves the views of a batch by 0.1 and more.
ROUNDING = {"no": 1e-5, "fp16": 2e-2, "bf16": 2e-2}


def views_differ(input_ids: torch.Tensor, embeddings: torch.Tensor, rounding: float) -> torch.Tensor:
    """Return whether the views of a batch differ, so that a method can learn from them, as a boolean tensor.

    They differ if the texts of a row `(B, V, T)` differ, or if the embeddings `(B', W, H)` of the sentences that count
    differ by more than a relative distance. A method may make views of its own, so W may differ from V.
    """
    if input_ids.shape[1] < 2:
        return torch.tensor(True, device=input_ids.device)
    texts = input_ids[: len(embeddings)]
    anchors, positives = embeddings.detach().float()[:, :2].unbind(1)
    distances = (anchors - positives).norm(dim=-1) > rounding * anchors.norm(dim=-1)
    return (texts[:, 0] != texts[:, 1]).any() | distances.any()


def refuse_equal_views(
    built: Build,
    recipe: Recipe,
    accelerator: Accelerator,
    input_ids: torch.Tensor,
    embeddings: torch.Tensor,
) -> None:
    """Refuse a run whose method makes its two views with dropout, and whose encoder has none.

    Args:
        input_ids: `(B, V, T)`, the first batch of the run.
        embeddings: `(B', W, H)`, of the training model for that batch, in training mode.
    """
    rounding = ROUNDING[precision_of(accelerator)]
    if built.model.config.views_part_in_training:
        return
    if accelerator.gather(views_differ(input_ids, embeddings, rounding)).any():
        return
    config = built.model.config.backbone_config
    fields = ", ".join(f"{name} {getattr(config, name)}" for name in dropout_fields(config))
    raise UserError(
        f"the two views of every sentence are equal: {recipe.method} makes them with dropout, and {recipe.base_model} "
        f"({config.model_type}) has none ({fields or 'no dropout in its configuration'}); give --dropout 0.1, or "
        "another --base_model"
    )


def refuse_lone_sentence(loss: torch.Tensor, recipe: Recipe) -> None:
    """Refuse batches of one sentence whose first loss is 0: it has no hard negative.

    The others of a batch are its negatives, and without any nothing is learnt.
    """
    if recipe.batch_size == 1 and loss == 0:
        raise UserError("batch_size: 1 leaves a sentence without negatives, and the loss is 0; give 2 or more")


def refuse_padding_dependence(built: Build, recipe: Recipe) -> None:
    """Refuse an encoder whose vectors change when a sentence is padded: they would depend on the batch."""
    if (moved := padding_moves(built.model.serving_model(), built.serving_tokenizer)) > PADDING_MOVES:
        kind = built.model.config.backbone_config.model_type
        raise UserError(
            f"base_model: {recipe.base_model} ({kind}) changes the vectors of a sentence when it is padded (by "
            f"{moved:.1g} of their size), so they depend on the batch; give an encoder that masks padding"
        )


def warn_if_solved(step: int, loss: float) -> None:
    """Say that a contrastive loss is almost 0 from the start: the encoder tells these sentences apart already."""
    if loss < SOLVED:
        logger.warning(
            "the contrastive loss is at most %.1g in %d updates: this encoder tells the sentences of a batch apart "
            "already and learns little; try a higher --temperature, hard negatives (three --text_columns) or a larger "
            "--batch_size",
            loss,
            step,
        )


def spread(vectors: np.ndarray) -> float:
    """Return the root mean square distance of vectors `(n, H)` from their mean, after normalisation.

    It is 0 if all vectors point the same way, and at most 1.
    """
    units = unit_vectors(vectors)
    return float(np.sqrt(np.square(units - units.mean(0)).sum(1).mean()))


def dead_channels(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Count the batch norm channels whose running variance is below epsilon.

    Such a channel outputs noise in training and almost nothing at test.

    Returns:
        For each batch norm that has any, by name: the number of such channels, and of all its channels.
    """
    counts = {
        name: (int((norm.running_var < norm.eps).sum()), norm.num_features)
        for name, norm in model.named_modules()
        if isinstance(norm, torch.nn.BatchNorm1d) and norm.running_var is not None
    }
    return {name: count for name, count in counts.items() if count[0]}


def collapse_signs(vectors: np.ndarray, model: torch.nn.Module) -> list[str]:
    """Return one line for each sign of collapse."""
    lines = []
    if (distance := spread(vectors)) < LEAST_SPREAD:
        lines.append(f"the embeddings have collapsed: on dev their distance from the mean is {distance:.1e}")
    for name, (dead, channels) in dead_channels(model).items():
        lines.append(f"batch norm {name}: {dead} of {channels} channels have no variance")
    return lines
