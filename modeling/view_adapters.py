"""Two sets of small modules in every layer of an encoder, one for each view: LoRA or bottleneck adapters.

References:
    Hu et al. 2021, "LoRA". Houlsby et al. 2019, "Parameter-Efficient Transfer Learning for NLP", section 2: the
    adapters. DiffAug (Wang, Lu 2022, section 4.4 and appendix F) uses them instead of its prefixes.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

# How the names of the adapted linear layers end in the BERT family, DistilBERT, MPNet and DeBERTa.
LINEAR = {
    "lora": (".query", ".value", ".q_lin", ".v_lin", ".attn.q", ".attn.v", ".query_proj", ".value_proj"),
    "adapter": (".output.dense", ".out_lin", ".ffn.lin2", ".attn.o"),
}


class UpProjection(nn.Linear):
    """A linear layer that starts at zero. The class lets a model's initialisation recognise it."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class ViewAdapter(nn.Module):
    """The adapters of one layer: f(x W_down) W_up, for each row with one set of weights or the mean of the sets.

    Two matrices have all sets side by side, so that one product computes all of them, and each row is masked to its
    set. `(rows, T, inputs) -> (rows, T, outputs)`; W_up starts at zero.

    Args:
        inputs, outputs: sizes of the vectors.
        bottleneck: r of one set.
        sets: number of sets.
        kind: `lora` adds s x W_down W_up to a layer's output, x its input; `adapter` adds f(h W_down) W_up to h, a
            layer's output, with f = GELU as in Houlsby's release (neither paper states f).
        scale: LoRA's s.

    Example:
        >>> adapter = ViewAdapter(4, 4, bottleneck=2, sets=2, kind="lora", scale=1.0)
        >>> adapter(torch.ones(3, 5, 4)).shape
        torch.Size([3, 5, 4])
    """

    def __init__(self, inputs: int, outputs: int, bottleneck: int, sets: int, kind: str, scale: float):
        super().__init__()
        self.down = nn.Linear(inputs, sets * bottleneck, bias=False)
        self.up = UpProjection(sets * bottleneck, outputs, bias=False)
        self.bottleneck, self.sets, self.kind, self.scale = bottleneck, sets, kind, scale
        self.shares: torch.Tensor | None = None  # see ViewAdapters.shared

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        inner = self.down(vectors)
        inner = self.scale * inner if self.kind == "lora" else F.gelu(inner)
        if self.shares is None:
            return self.up(inner / self.sets)
        return self.up(inner * self.shares.to(inner).repeat_interleave(self.bottleneck, -1))

    def add_to(self, linear: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Forward hook of the adapted layer."""
        return output + self(inputs[0] if self.kind == "lora" else output)


class ViewAdapters(nn.ModuleList):
    """The `ViewAdapter`s of all layers of a backbone.

    LoRA is on the query and value projections, adapters are on the outputs of attention and feed-forward network
    (before dropout and the skip connection).

    Args:
        backbone: gets a forward hook at each adapted layer.
        kind: `lora` or `adapter`.
        bottleneck, sets, scale: see `ViewAdapter`.

    Raises:
        ValueError: the backbone has no layer of `LINEAR`.
    """

    def __init__(self, backbone: PreTrainedModel, kind: str, bottleneck: int, sets: int, scale: float):
        super().__init__()
        for name, linear in backbone.named_modules():
            if name.endswith(LINEAR[kind]):
                inputs = linear.in_features if kind == "lora" else linear.out_features
                self.append(ViewAdapter(inputs, linear.out_features, bottleneck, sets, kind, scale))
                linear.register_forward_hook(self[-1].add_to)
        if not len(self):
            raise ValueError(
                f"views_module: {kind} does not support {backbone.config.model_type}; use views_module: prefix"
            )

    @torch.no_grad()
    def merge_into(self, backbone: nn.Module) -> None:
        """Add the mean of LoRA's sets to the weights of a backbone without hooks; it then returns the same vectors."""
        places = [module for name, module in backbone.named_modules() if name.endswith(LINEAR["lora"])]
        for linear, adapter in zip(places, cast(Iterable[ViewAdapter], self), strict=True):
            linear.weight += adapter.scale / adapter.sets * adapter.up.weight @ adapter.down.weight

    @contextmanager
    def shared(self, shares: torch.Tensor | None) -> Iterator[None]:
        """Set the share of each set inside the context; None is their mean.

        Args:
            shares: `(rows or 1, T or 1, sets)`, of each row or token.
        """
        adapters = cast(Iterable[ViewAdapter], self)
        for adapter in adapters:
            adapter.shares = shares
        try:
            yield
        finally:
            for adapter in adapters:
                adapter.shares = None
