"""Batches of training data: shuffled by seed and batch number, shared among processes, collated."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, TypeVar

import datasets
import pyarrow.compute as pc
import torch

from .collation import ViewCollator
from .teachers import BaseTeacher, Teachers

Rows = TypeVar("Rows", list, range)
# So large that a later epoch of one seed is never the first epoch of another.
EPOCH_STRIDE = 1_000_003


def draws_of(seed: int, number: int, sentences: range) -> Iterator[Random]:
    """Yield a random generator for the edits of each sentence. It does not depend on the number of processes.

    Args:
        sentences: their places in the batch over all processes.
    """
    return (Random(f"{seed} {number} {place}") for place in sentences)


def cut_into_batches(
    rows: torch.Tensor,
    batch_size: int,
    *,
    window: int = 0,
    lengths: torch.Tensor | None = None,
    generator: torch.Generator | None = None,
) -> list[torch.Tensor]:
    """Cut shuffled row numbers into batches. With a window, a batch has rows of similar length and little padding.

    Args:
        rows: `(n,)`, row numbers in random order.
        window: sort the rows of this many batches by length, then shuffle the batches. 0 keeps the random order.
        lengths: `(n,)`, length of each row by its number. A window needs them.
        generator: for the order of the batches of a window.
    """
    if not window or lengths is None:
        return list(rows.split(batch_size))
    windows = rows.split(window * batch_size)
    sorted_rows = torch.cat([rows[lengths[rows].argsort(stable=True)] for rows in windows])
    batches = sorted_rows.split(batch_size)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def row_lengths(rows: datasets.Dataset) -> torch.Tensor:
    """Return the number of word pieces in the longest view of each tokenised row, `(n,)`."""
    table = rows.with_format("arrow")[:]
    columns = [pc.list_value_length(table[name]) for name in table.column_names if name.isdigit()]
    return torch.tensor(pc.max_element_wise(*columns).to_numpy())


class Batches(torch.utils.data.Dataset):
    """One process's share of every batch. It depends only on seed and batch number, so resume restores nothing.

    Every epoch has a different order, and its last batch is kept even if it is smaller. Item `n` is batch n of the
    run, collated, with `rows`, the number of sentences that count. If a batch has fewer sentences than there are
    processes, the remaining processes get one sentence that does not count.

    Args:
        sentences: tokenised rows.
        batch_size: sentences in a batch, over all processes.
        rank, world: number of this process, and of processes.
        length_window: `window` of `cut_into_batches`.
        teachers: of rank distillation. They add `teacher_vectors` to each item.
    """

    def __init__(
        self,
        sentences: datasets.Dataset,
        collate: ViewCollator,
        *,
        batch_size: int,
        seed: int,
        rank: int,
        world: int,
        length_window: int = 0,
        teachers: Teachers | BaseTeacher | None = None,
    ):
        self.sentences, self.collate, self.teachers = sentences, collate, teachers
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.length_window = length_window
        self.lengths = row_lengths(sentences) if length_window else None
        self.batches_per_epoch = -(-len(sentences) // batch_size)
        self._epoch: int | None = None
        self._batches: list[torch.Tensor] = []  # not lists: 10^7 numbers would take 400 MB

    def __getitem__(self, number: int) -> dict[str, Any]:
        batch = self.rows(number)
        share = process_share(range(len(batch)), self.rank, self.world)
        numbers = [batch[place] for place in share] or batch[:1]
        item = self.collate(self.sentences.__getitems__(numbers), draws_of(self.seed, number, share))
        if self.teachers:
            item["teacher_vectors"] = self.teachers[numbers]
        return {**item, "rows": len(share)}

    def rows(self, number: int) -> list[int]:
        """Return the row numbers of batch `number`, over all processes."""
        epoch, position = divmod(number, self.batches_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed + EPOCH_STRIDE * epoch)
            rows = torch.randperm(len(self.sentences), generator=generator)
            self._epoch = epoch
            self._batches = cut_into_batches(
                rows, self.batch_size, window=self.length_window, lengths=self.lengths, generator=generator
            )
        return self._batches[position].tolist()


def process_share(batch: Rows, rank: int, world: int) -> Rows:
    """Return the contiguous part of a batch for a process. The first processes get the rows that do not divide evenly.

    Example:
        >>> process_share([1, 2, 3], 0, 2), process_share(range(3), 1, 2), process_share([1], 1, 2)
        ([1, 2], range(2, 3), [])
    """
    size, more = divmod(len(batch), world)
    first = rank * size + min(rank, more)
    return batch[first : first + size + (rank < more)]
