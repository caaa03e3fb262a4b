"""Changes of what the embedding layer and the first layers of an encoder return, for one pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..serving.layers_csezoo import hidden_layers
from .backbones import embedding_output, first_output, with_first_output, without_checkpointing
from .packing import Packing

# Changes a layer's output `(R, T, H)`, or with a packing `(1, N, H)`.
Perturbation = Callable[[torch.Tensor, Packing | None], torch.Tensor]


@contextmanager
def perturbed(backbone: PreTrainedModel, perturbations: list[Perturbation]) -> Iterator[None]:
    """Perturb the outputs of the backbone's embedding layer and first layers inside the context, for one pass.

    Args:
        backbone: an encoder or decoder.
        perturbations: functions of the output and its packing, for the embedding layer and then for the first
            Transformer layers.
    """
    places = [embedding_output(backbone), *hidden_layers(backbone)[: len(perturbations) - 1]]
    # A layer that runs several times has a perturbation for each time.
    of_module = {module: [p for m, p in zip(places, perturbations, strict=True) if m is module] for module in places}
    handles = []
    try:
        for module, in_turn in of_module.items():
            hook = partial(_perturb_output, in_turn[0]) if len(in_turn) == 1 else _PerturbInTurn(in_turn)
            # Run before the hooks that record hidden states.
            handles.append(module.register_forward_hook(hook, prepend=True, with_kwargs=True))
        with without_checkpointing(of_module):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _perturb_output(
    perturb: Perturbation, module: nn.Module, inputs: tuple, named: dict[str, Any], output: torch.Tensor | tuple
) -> torch.Tensor | tuple:
    hidden = first_output(output)
    # A layer that reads packed tokens gets the packing; the embedding layer reads padded rows.
    moved = perturb(hidden, named.get("packing"))
    if moved.shape != hidden.shape:
        raise ValueError(
            f"base_model: a layer's output has the shape {tuple(hidden.shape)}, and its mask {tuple(moved.shape)}; "
            "l2pcsr needs rows, tokens and features in this order; choose another base_model"
        )
    return with_first_output(output, moved)


class _PerturbInTurn:
    """A forward hook that perturbs the first outputs of a module, each in its way, and leaves the others."""

    def __init__(self, perturbations: list[Perturbation]):
        self.remaining = list(perturbations)

    def __call__(
        self, module: nn.Module, inputs: tuple, named: dict[str, Any], output: torch.Tensor | tuple
    ) -> torch.Tensor | tuple:
        if not self.remaining:
            return output
        return _perturb_output(self.remaining.pop(0), module, inputs, named, output)
