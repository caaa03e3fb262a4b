"""Batches of a stream: it is read in blocks, each shuffled by seed and number, and can continue at a position."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import datasets
import torch

from ..errors import UserError, library_errors
from .batches import cut_into_batches, draws_of, process_share
from .collation import ViewCollator
from .sources import torn_rows_are_errors


@contextmanager
def reading_stream() -> Iterator[None]:
    """Turn the errors of reading the rows of a stream into one line, see `library_errors`."""
    with library_errors("the stream could not be read ({error})"), torn_rows_are_errors():
        yield


@dataclass(frozen=True)
class StreamPosition:
    """Where a block of a stream begins. A checkpoint has it, so that a resumed run does not read what comes before.

    Args:
        batch: number of its first batch in the run.
        epoch: passes over the stream before it.
        block: its number in the epoch.
        shards: how many shards of the epoch were read completely.
        inside: the position in the next shard, as `datasets` describes it, or None for its beginning.
        readers: how many processes divide the shards.
    """

    batch: int = 0
    epoch: int = 0
    block: int = 0
    shards: int = 0
    inside: dict | None = None
    readers: int = 1


class Shards:
    """The rows of one epoch of a stream, shard by shard.

    Args:
        order: numbers of the shards in the order in which they are read.
        total: how many shards the stream is divided into.
        read: how many shards of `order` to skip.
        inside: where to begin in the next one, see `StreamPosition`.
    """

    def __init__(self, stream: datasets.IterableDataset, order: list[int], total: int, read: int, inside: dict | None):
        self.stream, self.order, self.total, self.read = stream, order, total, read
        self.shard: datasets.IterableDataset | None = None
        self.rows: Iterator[dict[str, str]] = iter(())
        if inside:
            self._open(inside)

    def _open(self, inside: dict | None = None) -> None:
        self.shard = self.stream.shard(self.total, self.order[self.read])
        if inside:
            self.shard.load_state_dict(inside)
        self.rows = iter(self.shard)

    @property
    def inside(self) -> dict | None:
        """The position in the shard that is being read."""
        return self.shard.state_dict() if self.shard else None

    def take(self, number: int) -> list[dict[str, str]]:
        """Read the next rows, fewer at the end of the epoch."""
        taken: list[dict[str, str]] = []
        while len(taken) < number and self.read < len(self.order):
            if self.shard is None:
                self._open()
            with reading_stream():
                taken += itertools.islice(self.rows, number - len(taken))
            if len(taken) < number:
                self.read, self.shard = self.read + 1, None
        return taken


class StreamedBatches(torch.utils.data.IterableDataset):
    """One process's share of every batch of a stream.

    The rows are read in blocks, and each block is shuffled. In every epoch the shards (the files of a data set) have
    another order. A text is tokenised only when its batch is used, so `length_window` compares lengths in characters.

    Args:
        shuffle_buffer: rows in a block, rounded up to complete batches.
        start: number of the first batch.
        position: of a block that begins at `start` or before. What comes before it is not read.
        shards: how many shards the stream is divided into. 1 keeps the order of the rows from block to block.
        own_shards: each process reads only its shards (every `world`-th), and fills its share of a batch from them.
            Otherwise every process reads the complete stream.

    The other arguments are those of `Batches`. An item has `position` too, that of the block of its batch. An error
    that stops the stream is an item with `error` alone, because an exception from a worker would be several lines.

    Raises:
        UserError: fewer shards or sentences in a batch than processes that divide them, or a position of another
            number of processes.
    """

    def __init__(
        self,
        sentences: datasets.IterableDataset,
        collate: ViewCollator,
        *,
        batch_size: int,
        seed: int,
        rank: int,
        world: int,
        shuffle_buffer: int,
        start: int,
        position: StreamPosition | None = None,
        shards: int = 1,
        own_shards: bool = False,
        length_window: int = 0,
    ):
        self.sentences, self.collate, self.seed, self.start = sentences, collate, seed, start
        self.rank, self.world, self.own_shards, self.shards = rank, world, own_shards, shards
        self.length_window = length_window
        readers = world if own_shards else 1
        if shards < readers:
            raise UserError(
                f"stream_shards: the stream has {shards} shards for {world} processes; give it more files, or leave "
                "out --stream_shards"
            )
        if own_shards and batch_size < world:
            raise UserError(
                f"stream_shards: a batch of {batch_size} has no sentence for each of {world} processes; give a larger "
                "--batch_size, or leave out --stream_shards"
            )
        self.position = position if position and position.batch <= start else StreamPosition(readers=readers)
        if self.position.readers != readers:
            raise UserError(
                f"stream_shards: the run was started with {self.position.readers} processes that divide the shards, "
                f"not {readers}; resume with as many"
            )
        self.share = process_share(range(batch_size), rank, world) if own_shards else range(batch_size)
        # A window of batches does not cross the end of a block.
        unit = len(self.share) * max(1, length_window)
        self.block = -(-shuffle_buffer // unit) * unit

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            for number, rows in self._batches():
                if number >= self.start:
                    yield self._item(number, rows)
        except UserError as error:
            yield {"error": str(error)}

    def _item(self, number: int, rows: list[dict[str, str]]) -> dict[str, Any]:
        if self.own_shards:
            share = self.share[: len(rows)]
        else:
            share = process_share(range(len(rows)), self.rank, self.world)
            rows = [rows[position] for position in share] or rows[:1]
        item = self.collate(rows, draws_of(self.seed, number, share))
        return {**item, "rows": len(share), "position": self.position}

    def _batches(self) -> Iterator[tuple[int, list[dict[str, str]]]]:
        """Yield the number and the rows of every batch from the beginning of the block at `position`."""
        while True:
            rows = Shards(self.sentences, self._order(), self.shards, self.position.shards, self.position.inside)
            while block := rows.take(self.block):
                batches = self._cut(block)
                for number, batch in enumerate(batches, start=self.position.batch):
                    yield number, [block[i] for i in batch.tolist()]
                self.position = replace(
                    self.position,
                    batch=self.position.batch + len(batches),
                    block=self.position.block + 1,
                    shards=rows.read,
                    inside=rows.inside,
                )
            if self.position.block == 0:
                raise UserError("the stream has no sentences; give another --train_file or --dataset")
            self.position = replace(self.position, epoch=self.position.epoch + 1, block=0, shards=0, inside=None)

    def _order(self) -> list[int]:
        """Return the shards of this process in the order of the epoch."""
        order = torch.randperm(self.shards, generator=self._generator("shards")).tolist()
        return [shard for shard in order if shard % self.position.readers == self.rank % self.position.readers]

    def _cut(self, block: list[dict[str, str]]) -> list[torch.Tensor]:
        """Shuffle the rows of the block at `position`, and cut them into batches of row numbers."""
        generator = self._generator(f"block {self.position.block}")
        rows = torch.randperm(len(block), generator=generator)
        lengths = torch.tensor([max(len(text) for text in row.values()) for row in block])
        return cut_into_batches(rows, len(self.share), window=self.length_window, lengths=lengths, generator=generator)

    def _generator(self, purpose: str) -> torch.Generator:
        draw = Random(f"{self.seed} {self.position.epoch} {purpose}").getrandbits(63)
        return torch.Generator().manual_seed(draw)
