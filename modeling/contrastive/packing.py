"""Encoder passes that compute no padding.

A padded batch `(R, T)` has rows of different lengths. Linear layers, norms and activations treat every token by
itself, so they can read the real tokens of all rows as one sequence `(1, N)`. Only attention must know the rows. Rows
of equal length are next to each other in that sequence. Attention is computed for each such group, without a mask.

The embedding layer still reads the padded batch, because positions are counted there. Its output is packed, and the
output of the last layer is unpacked again. Dropout is drawn for real tokens only; without dropout every number is that
of the padded batch.

If pooling reads one token of each row, the last layer computes only that one. It reads the keys and values of all.

An encoder that cannot read such a sequence reads the batch in parts with rows of similar length. Each part is padded
to its own longest row.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import Any, cast

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..serving.layers_csezoo import KEY, VALUE, hidden_layers, projections_of
from ..serving.modeling_csezoo import is_causal
from .backbones import embedding_layer, embedding_output, position_tables, without_checkpointing

# The attention implementation below.
PACKED = "csezoo_packed"
# Below this share of padding, many small attentions cost more than the padding.
LEAST_PADDING = 1 / 32
# Parts of a batch, see `Parts`. More would compute less padding, with smaller products of matrices.
PARTS, LEAST_ROWS = 8, 4
# What an encoder returns for each token.
OUTPUTS = {"last_hidden_state", "hidden_states", "logits"}


class Packing:
    """Where the real tokens of a padded batch are. Rows are ordered by length.

    Args:
        attention_mask: `(R, T)`, 1 for real tokens; every row has one.
        pooled: `(R,)`, the position of the only token of each row that the last layer computes, which is a real one;
            all by default.

    Example:
        >>> packing = Packing(torch.tensor([[1, 1, 1], [1, 0, 0]]))
        >>> tokens = torch.tensor([[5, 6, 7], [8, 0, 0]])
        >>> packing.pack(tokens), packing.groups  # a row of one token, a row of three
        (tensor([[8, 5, 6, 7]]), [(1, 1), (1, 3)])
        >>> packing.unpack(packing.pack(tokens)).equal(tokens)
        True
    """

    padding = 0  # tokens of padding that the encoder still reads

    def __init__(self, attention_mask: torch.Tensor, pooled: torch.Tensor | None = None):
        real = attention_mask.bool()
        lengths = real.sum(1)
        self.shape = real.shape
        self.order = lengths.argsort(stable=True)  # (R,)
        numbers = torch.arange(real.numel(), device=real.device).view(real.shape)
        self.places = numbers[self.order][real[self.order]]  # (N,), of each token in the flat padded batch
        sizes, counts = lengths[self.order].unique_consecutive(return_counts=True)
        self.groups = list(zip(counts.tolist(), sizes.tolist(), strict=True))  # rows and tokens of each
        self.pooled_places = None if pooled is None else self.order * self.shape[1] + pooled[self.order]  # (R,)
        # In the last layer, the keys and values `(1, N, H)` of all tokens, if it computes only the pooled ones.
        self.all_tokens: list[torch.Tensor] = []
        self.attended = False  # set by `attend`

    @property
    def rows(self) -> torch.Tensor:
        """The row of each token, `(N,)`."""
        return self.places // self.shape[1]

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the real tokens of `(R, T, …)` as `(1, N, …)`."""
        return padded.flatten(0, 1)[self.places][None]

    def pack_pooled(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the pooled tokens of `(1, N, …)` as `(1, R, …)`."""
        numbers = torch.empty(self.shape.numel(), dtype=torch.long, device=tokens.device)
        numbers[self.places] = torch.arange(len(self.places), device=tokens.device)
        return tokens[:, numbers[self.pooled_places]]

    def unpack(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return all tokens `(1, N, …)`, or the pooled ones `(1, R, …)`, as `(R, T, …)`, with zeros elsewhere."""
        places = self.places if self.has_all(tokens.shape[1]) else self.pooled_places
        rest = tokens.shape[2:]
        padded = tokens.new_zeros(self.shape.numel(), *rest).index_put((places,), tokens[0])
        return padded.view(*self.shape, *rest)

    def has_all(self, tokens: int) -> bool:
        """Return whether a sequence of so many tokens is that of all, and not of the pooled ones."""
        return tokens >= len(self.places)

    def split(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Split `(1, heads, S, d)` into groups `(rows, heads, tokens, d)`. With S < N, they are the pooled tokens.

        With S > N, the first S - N are those before the sentences (DiffAug's prefixes), row by row in `order`.
        """
        flat = tokens.transpose(1, 2)[0]  # (S, heads, d)
        shapes = self.groups if self.has_all(len(flat)) else [(rows, 1) for rows, _ in self.groups]
        sizes = [rows * length for rows, length in shapes]
        before, *groups = flat.split([len(flat) - sum(sizes), *sizes])
        groups = [part.unflatten(0, shape) for part, shape in zip(groups, shapes, strict=True)]
        if len(before):
            prefixes = before.unflatten(0, (self.shape[0], -1)).split([rows for rows, _ in self.groups])
            groups = [torch.cat(pair, dim=1) for pair in zip(prefixes, groups, strict=True)]
        return [group.transpose(1, 2) for group in groups]

    def attend(self, *states: torch.Tensor, dropout: float, scale: float | None) -> torch.Tensor:
        """Return the attention of query, key and value `(1, heads, S, d)` within each row, `(1, N or R, heads, d)`."""
        self.attended = True
        query, *seen = states
        for number, tokens in enumerate(self.all_tokens):
            state = seen[number]
            before = state[:, :, : state.shape[2] - query.shape[2]]
            tokens = tokens.unflatten(-1, (state.shape[1], state.shape[3])).transpose(1, 2)
            seen[number] = torch.cat([before, tokens], dim=2)
        self.all_tokens = []
        groups = [
            F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scale)
            .transpose(1, 2)
            .flatten(0, 1)
            for query, key, value in zip(*map(self.split, (query, *seen)), strict=True)
        ]
        return torch.cat(groups)[None]


class Parts:
    """A padded batch in parts with rows of similar length, each padded to its own longest row.

    Args:
        attention_mask: `(R, T)`, 1 for real tokens; R is at least 2 · `LEAST_ROWS`. Only padding on the right is cut.

    Example:
        >>> parts = Parts((torch.arange(9) < torch.tensor([[9]] * 4 + [[2]] * 4)).long())
        >>> parts.lengths, parts.padding
        ([2, 9], 0)
    """

    def __init__(self, attention_mask: torch.Tensor):
        self.shape = attention_mask.shape
        ends = (attention_mask.bool() * torch.arange(1, self.shape[1] + 1, device=attention_mask.device)).amax(1)
        self.order = ends.argsort(stable=True)
        self.rows = self.order.chunk(min(PARTS, self.shape[0] // LEAST_ROWS))
        self.lengths: list[int] = [int(ends[rows[-1]]) for rows in self.rows]
        computed = sum(len(rows) * length for rows, length in zip(self.rows, self.lengths, strict=True))
        self.padding = computed - int(attention_mask.sum())

    def unpack(self, padded: torch.Tensor) -> torch.Tensor:
        """Return what `run` made, which is padded."""
        return padded

    def run(self, encoder: PreTrainedModel, **inputs: Any) -> ModelOutput:
        """Call an encoder for each part, and return its outputs `(R, T, …)`, with zeros at the padding that was cut.

        Args:
            encoder: its outputs `OUTPUTS` are returned.
            inputs: its arguments. Tensors `(R, T, …)` are cut into parts.
        """

        def cut(value: Any, rows: torch.Tensor, length: int) -> Any:
            return value[rows, :length] if isinstance(value, torch.Tensor) and value.shape[:2] == self.shape else value

        outputs = [
            encoder(**{name: cut(value, rows, length) for name, value in inputs.items()})
            for rows, length in zip(self.rows, self.lengths, strict=True)
        ]
        joined: dict[str, Any] = {}
        for name in OUTPUTS & outputs[0].keys():
            made = [output[name] for output in outputs]
            layers = isinstance(made[0], tuple)
            joined[name] = tuple(map(self._join, zip(*made, strict=True))) if layers else self._join(made)
        return type(outputs[0])(**joined)

    def _join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        joined = parts[0].new_zeros(*self.shape, *parts[0].shape[2:])
        for rows, length, part in zip(self.rows, self.lengths, parts, strict=True):
            joined[rows, :length] = part
        return joined


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing: Packing | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with the interface of transformers: `sdpa`, or with a packing one attention for each group."""
    if packing is None:
        return ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    return packing.attend(query, key, value, dropout=dropout, scale=scaling), None


ALL_ATTENTION_FUNCTIONS.register(PACKED, packed_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def _without_head(encoder: PreTrainedModel) -> PreTrainedModel:
    return cast(PreTrainedModel, encoder.base_model)


def can_pack(encoder: PreTrainedModel) -> bool:
    """Return whether an encoder can leave out padding.

    It needs the attention interface of transformers, with `sdpa`, and an embedding layer that adds the positions. In
    other encoders (MPNet, DeBERTa, ModernBERT, NomicBERT) a layer counts positions itself, and in decoders tokens see
    only those before them.
    """
    embeddings = embedding_layer(_without_head(encoder))
    return (
        encoder._supports_attention_backend
        and encoder.config._attn_implementation in ("sdpa", PACKED)
        and "position_ids" in inspect.signature(embeddings.forward).parameters
        and any(True for _ in position_tables(embeddings))
        and "kwargs" in inspect.signature(encoder.forward).parameters
        and not is_causal(encoder)
    )


def can_pool_early(encoder: PreTrainedModel) -> bool:
    """Return whether the last layer of an encoder that packs can compute single tokens.

    It must run once, be built like the first one, and have one projection to keys and one to values.
    """
    *others, last = hidden_layers(_without_head(encoder))
    alike = bool(others) and type(others[0]) is type(last)
    return alike and last not in others and all(len(projections_of(last, ends)) == 1 for ends in (KEY, VALUE))


def packing_of(
    encoder: PreTrainedModel, attention_mask: torch.Tensor, pooled: torch.Tensor | None = None
) -> Packing | Parts | None:
    """Return how an encoder leaves out the padding of a batch `(R, T)`, or None if it must or should compute it.

    It should if there is little of it and all tokens are read, if a compiler would compile every batch anew, or on
    another device than a CPU, where many small passes have not been measured. It must if it cannot read packed tokens
    and a hook changes its embedding layer's output.

    Args:
        encoder: of any family.
        attention_mask: `(R, T)`.
        pooled: `(R,)`, the position of the only token of each row whose last vector is read, if there is one.
    """
    if torch.compiler.is_compiling() or attention_mask.device.type != "cpu":
        return None
    lengths, tokens = attention_mask.sum(1), attention_mask.numel()
    little = bool(lengths.sum() > (1 - LEAST_PADDING) * tokens)
    if not lengths.all() or little and pooled is None:
        return None
    if can_pack(encoder):  # looked up late: it goes through all modules
        if pooled is None or not (attention_mask.gather(1, pooled[:, None]).all() and can_pool_early(encoder)):
            return None if little else Packing(attention_mask)
        return Packing(attention_mask, pooled)
    if len(attention_mask) < 2 * LEAST_ROWS or embedding_output(_without_head(encoder))._forward_hooks:
        return None
    parts = Parts(attention_mask)
    return parts if parts.padding + lengths.sum() <= (1 - LEAST_PADDING) * tokens else None


def _in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that does nothing in other threads."""
    thread = get_ident()
    return lambda *arguments: hook(*arguments) if get_ident() == thread else None


@contextmanager
def _pooling_early(backbone: PreTrainedModel, packing: Packing) -> Iterator[None]:
    """Let the last layer of a backbone compute only the pooled tokens of a packing, inside the context.

    The layer gets only these tokens. The keys and values of all tokens are made from what it would have got, so its
    projections must read that itself, and not a norm of it. What those of the first layer read shows whether they do.
    """
    first, *_, last = hidden_layers(backbone)
    entered, direct = None, False

    @_in_this_thread
    def enter(layer: torch.nn.Module, inputs: tuple) -> None:
        nonlocal entered
        entered = inputs[0]

    @_in_this_thread
    def project(linear: torch.nn.Module, inputs: tuple) -> None:
        nonlocal direct
        direct = inputs[0] is entered

    @_in_this_thread
    def pool(layer: torch.nn.Module, inputs: tuple) -> tuple | None:
        if not direct:
            return None
        tokens, *others = inputs
        packing.all_tokens = [projections_of(layer, ends)[0][1](tokens) for ends in (KEY, VALUE)]
        return (packing.pack_pooled(tokens), *others)

    hooks = {first: enter, projections_of(first, KEY)[0][1]: project, last: pool}
    handles = [module.register_forward_pre_hook(hook) for module, hook in hooks.items()]
    try:
        with without_checkpointing([last]):  # it keeps only a few tokens
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def packed(
    encoder: PreTrainedModel, attention_mask: torch.Tensor | None, packing: Packing | Parts | None
) -> Iterator[Callable[..., Any]]:
    """Make an encoder leave out padding inside the context, if there is a packing.

    Enter it after other hooks on the embedding layer were registered: they see padded rows. Other threads may use the
    same encoder meanwhile.

    Args:
        encoder: the one that `packing_of` was asked about.
        attention_mask: `(R, T)`.
        packing: of this mask, or None.

    Returns:
        What to call instead of the encoder, with its arguments except the mask. `packing.unpack` takes its outputs.

    Raises:
        ValueError: the encoder did not hand the packing to its attention.
    """
    if packing is None:
        yield partial(encoder, attention_mask=attention_mask)
        return
    if isinstance(packing, Parts):
        yield partial(packing.run, encoder, attention_mask=attention_mask)
        return
    # Not only inside the context: checkpointed layers run again in the backward pass.
    encoder.config._attn_implementation = PACKED
    packing.attended = False
    backbone = _without_head(encoder)

    @_in_this_thread
    def pack(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
        return packing.pack(output)

    handle = embedding_output(backbone).register_forward_hook(pack)
    try:
        with nullcontext() if packing.pooled_places is None else _pooling_early(backbone, packing):
            yield partial(encoder, packing=packing)
    finally:
        handle.remove()
    if not packing.attended:
        raise ValueError(
            f"{type(encoder).__name__} does not pass options to its attention; compute its padding (padded: true)"
        )
