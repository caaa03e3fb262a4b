"""The optimizers that a recipe can name."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..recipes import Recipe


class Transformers4AdamW(torch.optim.AdamW):
    r"""AdamW of transformers 4, with which the releases of SG-OPT and DiffCSE were trained.

    It adds ε before the bias correction and decays the weights after the step. torch's AdamW does both the other way
    round.

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
        fused: bool = False,
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)

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
        """Divide the weights of a group by the number of their updates, and give each part its ε."""
        parts: dict[int, list[torch.Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                made = int(self.state[weight]["step"]) if self.state[weight] else 0
                parts.setdefault(made + 1, []).append(weight)
        second = group["betas"][1]
        return [
            {**group, "params": weights, "weight_decay": 0.0, "eps": group["eps"] / math.sqrt(1 - second**number)}
            for number, weights in parts.items()
        ]


def make_optimizer(
    recipe: Recipe, groups: list[dict], learning_rate: float, *, fp16: bool = False
) -> torch.optim.Optimizer:
    """Make the optimizer of a recipe.

    Args:
        recipe: names the optimizer and sets betas and epsilon.
        groups: the trained parameters with their weight decay.
        learning_rate: of the stage.
        fp16: whether the loss is scaled. If so, do not use a fused optimizer: it skips updates that overflow without
            accelerate noticing.
    """
    if recipe.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, lr=learning_rate, eps=recipe.adam_epsilon)
    first, second = recipe.adam_betas
    options: dict[str, Any] = {"lr": learning_rate, "betas": (first, second), "eps": recipe.adam_epsilon}
    if recipe.optimizer == "adamw-transformers4":
        # On a GPU, a fused optimizer counts its steps there, and reading them would wait for it.
        on_cpu = all(weight.device.type == "cpu" for group in groups for weight in group["params"])
        return Transformers4AdamW(groups, fused=on_cpu and not fp16, **options)
    return torch.optim.AdamW(groups, fused=not fp16, **options)  # fused: a fifth of the time on CPU
