"""Where the real tokens of a padded batch are, and attention within its rows: one way for each kind of device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHORT = 32  # the length up to which `PaddedAttention` does not divide rows
# Rows up to this length are fastest with the kernels that need the least memory, on an H200. torch prefers cuDNN,
# which takes up to twice as long: 1.15 ms against 0.66 ms for 1,024 rows of 32 tokens, forward and backward. From
# 128 tokens on, cuDNN is faster.
SHORT_ROWS = 64
FOR_SHORT_ROWS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def fastest_kernels(query: torch.Tensor) -> AbstractContextManager:
    """Return a context in which attention to `(rows, heads, tokens, d)` takes the kernels that are fastest for it."""
    short = query.is_cuda and query.shape[2] <= SHORT_ROWS
    return sdpa_kernel(FOR_SHORT_ROWS) if short else nullcontext()


class _Rearranged(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, values: torch.Tensor, places: torch.Tensor, back: torch.Tensor, unread: torch.Tensor | None
    ) -> torch.Tensor:
        context.save_for_backward(back, unread)
        return values.index_select(0, places)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        back, unread = context.saved_tensors
        gradient = gradient.index_select(0, back)
        if unread is not None:
            gradient.masked_fill_(unread.view(-1, *[1] * (gradient.ndim - 1)), 0)
        return gradient, None, None, None


def rearranged(
    values: torch.Tensor, places: torch.Tensor, back: torch.Tensor, unread: torch.Tensor | None = None
) -> torch.Tensor:
    """Return values `(S, …)` at places `(N,)`, where the gradient of each value comes from one place at most.

    `index_select` does not know that. Its backward pass adds, which takes a GPU longer than to read.

    Args:
        back: `(S,)`, the place in the result from which each value gets its gradient.
        unread: `(S,)`, the values whose gradient is 0; none by default.

    Example:
        >>> values = torch.tensor([5.0, 6.0, 7.0], requires_grad=True)
        >>> chosen = rearranged(values, torch.tensor([2, 0]), torch.tensor([1, 0, 0]), torch.tensor([0, 1, 0]).bool())
        >>> chosen, torch.autograd.grad(chosen, values, torch.tensor([1.0, 2.0]))
        (tensor([7., 5.], grad_fn=<_RearrangedBackward>), (tensor([2., 0., 1.]),))
    """
    return cast(torch.Tensor, _Rearranged.apply(values, places, back, unread))


class Packing:
    """Where the real tokens of a padded batch are. Rows are ordered by length."""

    padding = 0  # tokens of padding that the encoder reads
    shape: torch.Size  # (R, T)
    order: torch.Tensor  # (R,), the rows by length
    places: torch.Tensor  # (N,), of each token in the flat padded batch
    pooled_places: torch.Tensor | None = None  # (R,)
    groups: list[tuple[int, int]]  # rows and tokens of each group whose attention is computed together
    # If a group has more slots than tokens: the token in each slot, the slot of each token, and the slots without one.
    in_slots: torch.Tensor
    slots: torch.Tensor | None = None
    empty: torch.Tensor

    def __init__(self) -> None:
        # In the last layer, the keys and values `(1, N, H)` of all tokens, if it computes only the pooled ones.
        self.all_tokens: list[torch.Tensor] = []
        self.attended = False  # set by `attend`

    @property
    def rows(self) -> torch.Tensor:
        """The row of each token, `(N,)`."""
        return self.places // self.shape[1]

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the real tokens of `(R, T, …)` as `(1, N, …)`."""
        return padded.flatten(0, 1).index_select(0, self.places)[None]

    def pack_pooled(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the pooled tokens of `(1, N, …)` as `(1, R, …)`."""
        numbers = torch.empty(self.shape.numel(), dtype=torch.long, device=tokens.device)
        numbers[self.places] = torch.arange(len(self.places), device=tokens.device)
        return tokens[0].index_select(0, numbers[self.pooled_places])[None]

    def unpack(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return all tokens `(1, N, …)`, or the pooled ones `(1, R, …)`, as `(R, T, …)`, with zeros elsewhere."""
        pooled = self.pooled_places is not None and not self.has_all(tokens.shape[1])
        places, rest = self.pooled_places if pooled else self.places, tokens.shape[2:]
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
        every = self.has_all(len(flat))
        shapes = self.groups if every else [(rows, 1) for rows, _ in self.groups]
        own = len(self.places) if every else self.shape[0]
        # In few calls: on a GPU, they take longer than what they do.
        before, after = (flat[:0], flat) if len(flat) == own else flat.split([len(flat) - own, own])
        if every and self.slots is not None:
            # A slot without a token has the first one: nothing attends to it or reads it, so that its gradient is 0.
            after = rearranged(after, self.in_slots, self.slots)
        parts = after.split([rows * length for rows, length in shapes]) if len(shapes) > 1 else [after]
        groups = [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]
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
        every = self.has_all(query.shape[2])
        queries, keys, values = map(self.split, (query, *seen))
        groups = []
        for query, key, value, mask in zip(queries, keys, values, self._masks(keys), strict=True):
            with fastest_kernels(query):
                attended = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout, scale=scale)
            groups.append(attended.transpose(1, 2).flatten(0, 1))
        attended = torch.cat(groups) if len(groups) > 1 else groups[0]
        if every and self.slots is not None:
            attended = rearranged(attended, self.slots, self.in_slots, self.empty)
        return attended[None]

    def _masks(self, keys: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """Return the mask of each group, to add to the scores of its keys `(rows, heads, tokens, d)`."""
        return [None] * len(keys)


class EqualLengths(Packing):
    """Attention in groups of rows of equal length, without a mask: many small passes, which a CPU does fast.

    Args:
        attention_mask: `(R, T)`, 1 for real tokens, on the host; every row has one.
        pooled: `(R,)`, the position of the only token of each row that the last layer computes, which is a real one;
            all by default. It is on the device of the encoder.
    """

    def __init__(self, attention_mask: torch.Tensor, pooled: torch.Tensor | None = None):
        super().__init__()
        real = attention_mask.bool()
        lengths = real.sum(1)
        self.shape = real.shape
        self.order = lengths.argsort(stable=True)
        self.places = torch.arange(real.numel()).view(real.shape)[self.order][real[self.order]]
        sizes, counts = lengths[self.order].unique_consecutive(return_counts=True)
        self.groups = list(zip(counts.tolist(), sizes.tolist(), strict=True))
        self.pooled_places = None if pooled is None else self.order * self.shape[1] + pooled[self.order]


class PaddedAttention(Packing):
    """Attention on padded rows, with a mask, in as few passes as the lengths allow: one up to `SHORT` tokens.

    Everything else reads packed tokens. A GPU computes a few large passes faster than many small ones. Its kernels for
    rows of different lengths have no dropout, and not every dtype.

    A group has the rows that are longer than half of its longest one, each with `round_length` slots.

    The places are computed on the host, and copied without waiting for the device.

    Args:
        attention_mask, pooled: as of `EqualLengths`.
        device: of the encoder.
    """

    def __init__(self, attention_mask: torch.Tensor, pooled: torch.Tensor | None = None, *, device: torch.device):
        super().__init__()
        # In numpy: torch wakes its threads for some of this, which takes longer than the work.
        real = attention_mask.numpy().astype(bool)
        lengths = real.sum(1)
        self.shape = attention_mask.shape
        order = lengths.argsort(kind="stable")
        lengths, real = lengths[order], real[order]
        self.groups = cut_rows(lengths.tolist())
        widths = np.repeat([length for _, length in self.groups], [rows for rows, _ in self.groups])
        first = widths.cumsum() - widths  # slot of each row
        row, place = real.nonzero()
        before = np.arange(len(row)) - (lengths.cumsum() - lengths)[row]  # tokens of its row before each
        slots = first[row] + before
        in_slots = np.full(widths.sum(), -1)
        in_slots[slots] = np.arange(len(row))
        numbers = [order, order[row] * self.shape[1] + place, slots, in_slots.clip(0), in_slots < 0]
        self.order, self.places, self.slots, self.in_slots, empty = to_device(numbers, device)
        self.empty = empty.bool()
        self.masks: list[torch.Tensor] = []  # of the groups, made when the dtype is known
        if pooled is not None:
            self.pooled_places = self.order * self.shape[1] + pooled.index_select(0, self.order)

    def _masks(self, keys: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        # The same in all layers.
        if not self.masks:
            mask = torch.zeros_like(self.empty, dtype=keys[0].dtype).masked_fill(self.empty, -torch.inf)
            parts = mask.split([rows * length for rows, length in self.groups])
            self.masks = [
                F.pad(part.view(rows, 1, 1, length), (key.shape[2] - length, 0))
                for part, key, (rows, length) in zip(parts, keys, self.groups, strict=True)
            ]
        return self.masks


def round_length(length: int) -> int:
    """Return the next power of two, or three quarters of it if that is enough; at least 16.

    Example:
        >>> [round_length(length) for length in (3, 20, 30, 50)]
        [16, 24, 32, 64]
    """
    power = max(16, 1 << (length - 1).bit_length())
    return power * 3 // 4 if 16 < power and length <= power * 3 // 4 else power


def cut_rows(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut rows into few groups of similar length, and return rows and slots of each, see `PaddedAttention`.

    Args:
        lengths: tokens of each row, shortest first.

    Example:
        >>> cut_rows([3, 30, 40, 60, 100])
        [(1, 16), (2, 48), (2, 128)]
    """
    groups: list[tuple[int, int]] = []
    rest = len(lengths)
    while rest:
        longest = lengths[rest - 1]
        shorter = bisect_right(lengths, longest // 2, hi=rest) if longest > SHORT else 0
        groups.insert(0, (rest - shorter, round_length(longest)))
        rest = shorter
    return groups


def to_device(numbers: Sequence[np.ndarray], device: torch.device) -> Sequence[torch.Tensor]:
    """Copy vectors of whole numbers to a device, all at once and without waiting for it."""
    joined = torch.from_numpy(np.concatenate(numbers, dtype=np.int64))
    if device.type == "cuda":  # a copy from pageable memory may wait
        joined = joined.pin_memory()
    return joined.to(device, non_blocking=True).split([len(vector) for vector in numbers])
