"""The optimizers that a recipe can name."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from ..recipes import Recipe


class Transformers4AdamW(torch.optim.AdamW):
    r"""AdamW of transformers 4, which the releases of six of the papers import.

    These are SimCSE, PromptBERT, DiffAug, L2P-CSR, DiffCSE and SG-OPT. It adds ε before the bias correction and decays
    the weights after the step. torch's AdamW does both the other way round.

    .. math:: \theta \leftarrow \theta - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \frac{m}{\sqrt{v} + \epsilon},
              \qquad \theta \leftarrow (1 - \eta w)\, \theta

    So ε counts :math:`1 / \sqrt{1 - \beta_2^t}` times as much as in torch's AdamW: 32 times in the first update.
    Weights with small gradients move less in the first hundreds of updates.

    Args:
        params: tensors, or groups of them.
        lr, betas, eps, weight_decay: η, β, ε and w.
        fused: as for torch's AdamW.

    References:
        Loshchilov, Hutter 2019, "Decoupled Weight Decay Regularization". `transformers.AdamW` of version 4, with
        `correct_bias=True`.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
        >>> weight.grad = torch.tensor([1.0])
        >>> Transformers4AdamW([weight], lr=0.1).step()
        >>> round(weight.item(), 6)
        0.9
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        fused: bool | None = None,
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)

    corrects_bias = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        # Without decay, and with the larger ε, torch's AdamW is the first half of the equation.
        self.param_groups = [part for group in groups for part in self._at_each_step(group)]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights and group["weight_decay"] > 0:
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])

    def _at_each_step(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Divide the weights of a group by the number of their updates, and give each part its ε and its rate."""
        parts: dict[int, list[torch.Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                made = int(self.state[weight]["step"]) if self.state[weight] else 0
                parts.setdefault(made + 1, []).append(weight)
        first, second = group["betas"]
        divided = []
        for number, weights in parts.items():
            correction = math.sqrt(1 - second**number)
            # What torch will multiply the rate by.
            undone = 1.0 if self.corrects_bias else (1 - first**number) / correction
            part = {
                "params": weights,
                "weight_decay": 0.0,
                "eps": group["eps"] / correction,
                "lr": group["lr"] * undone,
            }
            divided.append({**group, **part})
        return divided


class UncorrectedAdamW(Transformers4AdamW):
    r"""AdamW of transformers 4 without bias correction, as BERT was trained.

    The trainer of sentence-transformers 0.x uses it, and so the releases of SBERT, IS-BERT and ConSERT.

    .. math:: \theta \leftarrow \theta - \eta \frac{m}{\sqrt{v} + \epsilon},
              \qquad \theta \leftarrow (1 - \eta w)\, \theta

    With the usual betas, the first updates are larger than with correction: the first one 3.2 times, the tenth 6.5
    times. After a thousand they are larger by a quarter.

    Args:
        params, lr, betas, eps, weight_decay, fused: as in `Transformers4AdamW`.

    References:
        Devlin et al. 2019, "BERT". `transformers.AdamW` of version 4, with `correct_bias=False`.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
        >>> weight.grad = torch.tensor([1.0])
        >>> UncorrectedAdamW([weight], lr=0.1).step()
        >>> round(weight.item(), 3)
        0.684
    """

    corrects_bias = False


def make_schedule(recipe: Recipe, optimizer: torch.optim.Optimizer, updates: int) -> LambdaLR:
    """Make the learning rate schedule of a recipe.

    Args:
        optimizer: has the highest learning rate.
        updates: length of the schedule. A `stepped` one has no length.

    Example:
        >>> recipe = Recipe(lr_scheduler="stepped", lr_boundaries=[1, 3], lr_factors=[0.5, 0.1])
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
        >>> schedule, rates = make_schedule(recipe, optimizer, 5), []
        >>> for _ in range(5):
        ...     rates += schedule.get_last_lr()
        ...     optimizer.step()
        ...     schedule.step()
        >>> rates
        [2.0, 1.0, 1.0, 0.2, 0.2]
    """
    if recipe.lr_scheduler == "stepped":
        boundaries, factors = recipe.lr_boundaries or [], [1.0, *(recipe.lr_factors or [])]
        return LambdaLR(optimizer, lambda made: factors[bisect_right(boundaries, made)])
    return get_scheduler(
        recipe.lr_scheduler,
        optimizer,
        num_warmup_steps=math.ceil(recipe.warmup_ratio * updates),
        num_training_steps=updates,
    )


def make_optimizer(
    recipe: Recipe, groups: list[dict], learning_rate: float, *, fp16: bool = False
) -> torch.optim.Optimizer:
    """Make the optimizer of a recipe.

    Args:
        recipe: names the optimizer and sets betas and epsilon.
        groups: the trained parameters with their weight decay.
        fp16: whether the loss is scaled. If so, do not use a fused optimizer: it skips updates that overflow without
            accelerate noticing.
    """
    if recipe.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, lr=learning_rate, eps=recipe.adam_epsilon, alpha=recipe.rmsprop_alpha)
    first, second = recipe.adam_betas
    options: dict[str, Any] = {"lr": learning_rate, "betas": (first, second), "eps": recipe.adam_epsilon}
    if recipe.optimizer != "adamw":
        kind = Transformers4AdamW if recipe.optimizer == "adamw-transformers4" else UncorrectedAdamW
        # On a GPU, a fused optimizer counts its steps there, and reading them would wait for it.
        on_cpu = all(weight.device.type == "cpu" for group in groups for weight in group["params"])
        return kind(groups, fused=(on_cpu and not fp16) or None, **options)
    # Fused: a fifth of the time on CPU. None lets torch update many tensors at once on a GPU; False would not.
    return torch.optim.AdamW(groups, fused=None if fp16 else True, **options)
