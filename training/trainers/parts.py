"""What losses and models in trainers share: the named parts of a loss, stages, the draws of edits."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from csezoo.modeling import SentenceEncoderConfig
from csezoo.modeling.contrastive.published import has_adapters
from csezoo.modeling.contrastive.training_model import ForContrastiveLearning

from ..errors import UserError


class LossParts:
    """Means of the named parts of a loss, over the batches since they were last taken, or over their rows."""

    def __init__(self) -> None:
        self.totals: dict[str, torch.Tensor] = {}
        self.weights = 0

    @torch.compiler.disable  # a compiler would compile anew for each number of batches
    def add(self, losses: dict[str, torch.Tensor], weight: int = 1) -> None:
        for name, loss in losses.items():
            self.totals[name] = self.totals.get(name, 0) + weight * loss.detach()
        self.weights += weight

    def take(self) -> dict[str, float]:
        taken = {name: float(total) / self.weights for name, total in self.totals.items()}
        self.totals, self.weights = {}, 0
        return taken


def draws(count: int) -> list[Random]:
    """Return random generators for the edits of sentences, from torch's random state."""
    return [Random(seed) for seed in torch.randint(2**62, (count,)).tolist()]


class Stages:
    """Begins the stages of a training model: frees what the last one froze, and freezes what the next does not train.

    Raises:
        UserError: the model has no such stage.
    """

    def __init__(self) -> None:
        self.frozen: list[torch.nn.Parameter] = []
        self.begun: str | None = None

    def freeze(self, trained: ForContrastiveLearning, stage: str) -> None:
        """Set what the stage trains. What is frozen already, by the method or its user, stays so."""
        if stage not in ("contrastive", "nli"):
            raise UserError(f"stage: {stage!r} must be contrastive or nli")
        if stage == "nli" and not trained.config.nli_classes:
            raise UserError("stage: nli needs nli_classes: 2 (triplets) or 3 (labelled pairs)")
        for parameter in self.frozen:
            parameter.requires_grad_()
        self.frozen = [parameter for parameter in trained.frozen_parameters(stage) if parameter.requires_grad]
        for parameter in self.frozen:
            parameter.requires_grad_(False)
        self.begun = stage


def small_weights(model: torch.nn.Module) -> torch.Tensor:
    """Return a copy of a model's biases, norms and adapters, which tells whether its weights were replaced."""
    adapted = has_adapters(model)
    small = (weights for weights in model.parameters() if weights.ndim < 2 or (adapted and weights.requires_grad))
    return torch.cat([weights.detach().flatten().cpu() for weights in small])


def refuse_labelled(config: SentenceEncoderConfig, texts: int, labels: Sequence[Any] | None) -> None:
    """Refuse a batch of labelled pairs that stage `nli` cannot read.

    Args:
        texts: in each row.
        labels: of the rows.
    """
    if texts not in (2, 3):
        raise UserError(f"stage nli needs pairs with a label, or triplets; the rows have {texts} texts")
    if texts == 3 and labels is not None:
        raise UserError("label: stage nli needs no labels for triplets; remove the column")
    if texts == 2 and config.nli_objective == "contrastive":
        raise UserError("nli_objective: contrastive needs triplets; the rows are pairs")
    if texts == 2 and labels is None:
        raise UserError("label: stage nli needs a column of labels for pairs; add it, or give triplets")
    most = config.nli_classes - 1
    for label in labels or ():
        if not _is_whole(label, most):
            raise UserError(f"label: expected a whole number from 0 to {most} (nli_classes), got {label!r}")


def _is_whole(label: Any, most: int) -> bool:
    try:
        return 0 <= operator.index(label) <= most
    except TypeError:
        return False


def refuse_without_callback(trained: ForContrastiveLearning, stage: str, begun: str | None) -> None:
    """Refuse to train what would silently be trained otherwise without `TrainingCallback`.

    Args:
        stage: of the batch.
        begun: the stage that a callback, or a loop, has begun.
    """
    if begun == stage:
        return
    if begun:
        raise UserError(
            f"stage: {begun} has begun, and the batch is for {stage}; give TrainingCallback(stage={stage!r})"
        )
    frozen = any(parameter.requires_grad for parameter in trained.frozen_parameters(stage))
    needs = {
        "ema_decay: its average is updated after each step": trained.config.ema_decay > 0,
        "lora_rank: the encoder would be trained, too": trained.config.lora_rank > 0,
        f"stage {stage}: it does not train all parameters": frozen,
        f"{trained.config.model_type}: its state changes after each step": changes_after_updates(trained),
    }
    for reason, holds in needs.items():
        if holds:
            raise UserError(f"{reason}; give the trainer callbacks=[csezoo.TrainingCallback()]")


def changes_after_updates(trained: ForContrastiveLearning) -> bool:
    """Return whether a method has its own `after_update` or `begin_stage`."""
    own, usual = type(trained), ForContrastiveLearning
    return own.after_update is not usual.after_update or own.begin_stage is not usual.begin_stage
