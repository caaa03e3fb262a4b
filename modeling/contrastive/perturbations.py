"""Changes of what the embedding layer and the first layers of an encoder return, for one pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..serving.encoder_layers_csezoo import hidden_layers
from .backbones import embedding_output, first_output, without_checkpointing
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
    waiting: dict[nn.Module, list[Perturbation]] = {}  # a layer that runs several times has one for each time
    for module, perturbation in zip(places, perturbations, strict=True):
        waiting.setdefault(module, []).append(perturbation)

    def perturb(module: nn.Module, inputs: tuple, named: dict[str, Any], output: torch.Tensor | tuple) -> Any:
        if not waiting[module]:
            return output
        hidden = first_output(output)
        # A layer that reads packed tokens gets the packing; the embedding layer reads padded rows.
        moved = waiting[module].pop(0)(hidden, named.get("packing"))
        if moved.shape != hidden.shape:
            raise ValueError(
                f"base_model: a layer's output has the shape {tuple(hidden.shape)}, its mask {tuple(moved.shape)}; "
                "l2pcsr needs rows, tokens and features in this order; choose another base_model"
            )
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    # Before the hooks that record hidden states.
    handles = [module.register_forward_hook(perturb, prepend=True, with_kwargs=True) for module in waiting]
    try:
        with without_checkpointing(waiting):
            yield
    finally:
        for handle in handles:
            handle.remove()
