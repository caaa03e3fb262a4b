"""The optimizers that a recipe can name."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..recipes import Recipe


class Transformers4AdamW(torch.optim.Optimizer):
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
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if not self.state[weight]:
                    # The step stays on the CPU, so that reading it does not wait for the device.
                    slots = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
                    self.state[weight] = {"step": torch.zeros(()), **slots}
            gradients = [weight.grad for weight in weights]
            steps = [self.state[weight]["step"] for weight in weights]
            means = [self.state[weight]["exp_avg"] for weight in weights]
            squares = [self.state[weight]["exp_avg_sq"] for weight in weights]
            first, second = group["betas"]
            torch._foreach_add_(steps, 1)
            torch._foreach_lerp_(means, gradients, 1 - first)
            torch._foreach_mul_(squares, second)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
            sizes = [
                -group["lr"] * math.sqrt(1 - second ** step.item()) / (1 - first ** step.item()) for step in steps
            ]
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(weights, means, roots, sizes)
            if group["weight_decay"] > 0:
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])


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
        return Transformers4AdamW(groups, **options)
    return torch.optim.AdamW(groups, fused=not fp16, **options)  # fused: a fifth of the time on CPU
