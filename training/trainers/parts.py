"""What losses and models in trainers share: the named parts of a loss, stages, the draws of edits."""

from __future__ import annotations

from random import Random

import torch

from csezoo.modeling.contrastive.training_model import ForContrastiveLearning

from ..errors import UserError


class LossParts:
    """Means of the named parts of a loss, over the batches since they were last taken."""

    def __init__(self) -> None:
        self.totals: dict[str, torch.Tensor] = {}
        self.batches = 0

    def add(self, losses: dict[str, torch.Tensor]) -> None:
        for name, loss in losses.items():
            self.totals[name] = self.totals.get(name, 0) + loss.detach()
        self.batches += 1

    def take(self) -> dict[str, float]:
        taken = {name: float(total) / self.batches for name, total in self.totals.items()}
        self.totals, self.batches = {}, 0
        return taken


def draws(count: int) -> list[Random]:
    """Return random generators for the edits of sentences. They depend on torch's state, which stays as it is."""
    with torch.random.fork_rng(devices=[]):
        return [Random(seed) for seed in torch.randint(2**62, (count,)).tolist()]


class Stages:
    """Begins the stages of a training model: frees what the last one froze, and freezes what the next does not train.

    Args:
        trained: what does not require gradients now is never trained.
    """

    def __init__(self, trained: ForContrastiveLearning):
        self.trainable = [parameter for parameter in trained.parameters() if parameter.requires_grad]
        self.begun: str | None = None

    def freeze(self, trained: ForContrastiveLearning, stage: str) -> None:
        """Set what the stage trains."""
        for parameter in self.trainable:
            parameter.requires_grad_()
        for parameter in trained.frozen_parameters(stage):
            parameter.requires_grad_(False)
        self.begun = stage


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
