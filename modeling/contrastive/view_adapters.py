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

from ..serving.encoder_layers_csezoo import FUSED, VALUE, hidden_layers, projections_of
from .backbones import shares_position_projections

# How the names of projections end, see `serving/encoder_layers_csezoo.py`.
QUERY: tuple[str, ...] = (".query", ".q_lin", ".attn.q", ".query_proj", ".q_proj")
# The outputs of attention and feed-forward network, before dropout and the skip connection.
OUTPUT: tuple[str, ...] = (".output.dense", ".out_lin", ".ffn.lin2", ".attn.o", ".o_proj", ".down_proj", ".fc2", ".Wo")
OUTPUT += (".attention.dense", ".ffn_output")  # ALBERT
# The layers that are adapted.
LINEAR = {"lora": (QUERY, VALUE, FUSED), "adapter": (OUTPUT,)}


def projections(backbone: PreTrainedModel, *endings: tuple[str, ...]) -> list[tuple[str, nn.Linear]]:
    """Return the linear layers whose names end as given, with their names, in the order of the modules.

    Args:
        endings: `QUERY`, `VALUE`, `FUSED` or `OUTPUT`.

    Raises:
        ValueError: the layers have none, or not the same number of them.
    """
    layers = list(dict.fromkeys(hidden_layers(backbone)))
    of_layers = [projections_of(layer, *endings) for layer in layers]
    if not of_layers[0] or len({len(of_layer) for of_layer in of_layers}) > 1:
        raise ValueError(
            f"base_model: each layer of {backbone.config.model_type} needs the same number of projections whose names "
            f"end in one of {', '.join(sum(endings, ()))}; choose another base_model"
        )
    return [pair for of_layer in of_layers for pair in of_layer]


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
        fused: the layer's output is query, key and value, and the key is not adapted.
        dropout: on the inputs, in training.
        position_rows: the layer also reads a table of relative positions, as one row. It belongs to the rows of all
            views, so its result is the mean of the sets.

    Example:
        >>> adapter = ViewAdapter(4, 4, bottleneck=2, sets=2, kind="lora", scale=1.0)
        >>> adapter(torch.ones(3, 5, 4)).shape
        torch.Size([3, 5, 4])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bottleneck: int,
        sets: int,
        kind: str,
        scale: float,
        dropout: float = 0.0,
        fused: bool = False,
        position_rows: bool = False,
    ):
        super().__init__()
        self.down = nn.Linear(inputs, sets * bottleneck, bias=False)
        self.up = UpProjection(sets * bottleneck, outputs * 2 // 3 if fused else outputs, bias=False)
        self.bottleneck, self.sets, self.kind, self.scale = bottleneck, sets, kind, scale
        self.dropout, self.fused, self.position_rows = dropout, fused, position_rows
        self.shares: torch.Tensor | None = None  # see ViewAdapters.shared

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        if self.dropout and self.training:
            vectors = F.dropout(vectors, self.dropout)
        inner = self.down(vectors)
        inner = self.scale * inner if self.kind == "lora" else F.gelu(inner)
        if self.shares is None or (self.position_rows and len(vectors) == 1):
            return self.up(inner / self.sets)
        return self.up(inner * self.shares.to(inner).repeat_interleave(self.bottleneck, -1))

    def beside_key(self, change: torch.Tensor, dim: int) -> torch.Tensor:
        """Put zeros for the key between the changes of query and value, if they have one layer."""
        if not self.fused:
            return change
        query, value = change.chunk(2, dim)
        return torch.cat([query, torch.zeros_like(query), value], dim)

    def add_to(self, linear: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Forward hook of the adapted layer."""
        return output + self.beside_key(self(inputs[0] if self.kind == "lora" else output), -1)


class ViewAdapters(nn.ModuleList):
    """The `ViewAdapter`s of all layers of a backbone.

    LoRA is on the query and value projections, adapters are on the outputs of attention and feed-forward network
    (before dropout and the skip connection).

    Args:
        backbone: gets a forward hook at each adapted layer.
        kind: `lora` or `adapter`.
        bottleneck, sets, scale, dropout: see `ViewAdapter`.

    Raises:
        ValueError: the backbone has no layer of `LINEAR`.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        kind: str,
        bottleneck: int,
        sets: int,
        scale: float = 1.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        position_rows = kind == "lora" and shares_position_projections(backbone.config)
        for name, linear in projections(backbone, *LINEAR[kind]):
            inputs = linear.in_features if kind == "lora" else linear.out_features
            fused = name.endswith(FUSED)
            sizes = (inputs, linear.out_features, bottleneck, sets)
            self.append(ViewAdapter(*sizes, kind, scale, dropout, fused, position_rows))
        self.kind = kind
        self.adapt(backbone)

    def adapt(self, backbone: PreTrainedModel) -> None:
        """Add the adapters to the layers of a backbone of the same architecture."""
        adapted = zip(projections(backbone, *LINEAR[self.kind]), cast(Iterable[ViewAdapter], self), strict=True)
        for (_, linear), adapter in adapted:
            linear.register_forward_hook(adapter.add_to)

    @torch.no_grad()
    def merge_into(self, backbone: PreTrainedModel) -> None:
        """Add the mean of LoRA's sets to the weights of a backbone without hooks; it then returns the same vectors."""
        places = projections(backbone, *LINEAR["lora"])
        for (_, linear), adapter in zip(places, cast(Iterable[ViewAdapter], self), strict=True):
            change = adapter.scale / adapter.sets * adapter.up.weight @ adapter.down.weight
            linear.weight += adapter.beside_key(change, 0)

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
