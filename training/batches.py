"""Texts to batches of views: tokenised once, shuffled by seed and number, collated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import pyarrow.compute as pc
import torch
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from csezoo.modeling import SentenceEncoderConfig

from .errors import UserError, one_line
from .prompts import Template


def tokenize(
    batch: dict[str, list],
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    config: SentenceEncoderConfig | None = None,
) -> dict[str, list]:
    """Ids of each column's sentences, alone and without special tokens, cut at `length`.

    Args:
        config: of the method, which may put texts before the sentences: on top of `length`, or counted in it.
    """

    def ids(texts: list[str], **options: Any) -> list[list[int]]:
        return tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, **options
        ).input_ids

    columns = {column: texts for column, texts in batch.items() if column.isdigit()}
    cut = {"truncation": True, "max_length": length}
    if config is None or not (prefixes := config.text_prefixes(columns["0"], tokenizer)):
        return {column: ids(texts, **cut) for column, texts in columns.items()}
    if len(columns) > 1:
        raise UserError(f"text_columns: {config.model_type} makes its own views of a sentence, one column is meant")
    views = {}
    for view, before in enumerate(prefixes):
        # A separator's space belongs to the sentence: byte-level vocabularies write it into the first word.
        spaced = [prefix[len(prefix.rstrip()) :] + text for prefix, text in zip(before, columns["0"], strict=True)]
        heads = ids([prefix.rstrip() for prefix in before])
        views[str(view)] = [head + tail for head, tail in zip(heads, ids(spaced, **cut), strict=True)]
        if config.prefixes_count_as_text:
            views[str(view)] = [row[:length] for row in views[str(view)]]
    return views


# Far apart, so that no seed's later epoch is another seed's first.
EPOCH_STRIDE = 1_000_003


def tokenize_once(sentences: datasets.Dataset, **options: Any) -> datasets.Dataset:
    """`tokenize` over a data set, cached by what its result depends on.

    Args:
        options: of `tokenize`.
    """
    tokenizer, length, config = options["tokenizer"], options["length"], options.get("config")
    prefixes = config.to_json_string() if config and config.text_prefixes([], tokenizer) else None
    fingerprint = Hasher.hash([sentences._fingerprint, tokenizer.backend_tokenizer.to_str(), length, prefixes])
    return sentences.map(tokenize, batched=True, fn_kwargs=options, new_fingerprint=fingerprint, desc="Tokenising")


class ViewCollator:
    """Rows of token ids to one padded batch of views `(B, V, T)`.

    Args:
        templates: ids before and after the sentence, one for each view (the last for all further views).
        pad_token_id: fills rows up to the longest of the batch.
        view_columns: number of columns to the column each view reads, see `SentenceEncoderConfig.view_columns`.
        tokenize: applied first where rows still hold texts (streams).
    """

    def __init__(
        self,
        templates: list[Template],
        pad_token_id: int,
        view_columns: Callable[[int], list[int]],
        tokenize: Callable[[dict], dict] | None = None,
    ):
        self.templates = templates
        self.pad_token_id = pad_token_id
        self.view_columns = view_columns
        self.tokenize = tokenize

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        labels = columns.pop("label", None)
        if self.tokenize:
            columns = self.tokenize(columns)
        try:
            views = [columns[str(column)] for column in self.view_columns(len(columns))]
        except ValueError as error:  # the method cannot make its views of so many columns
            raise UserError(str(error)) from error
        sequences = []
        for sentence in zip(*views, strict=True):
            for view, ids in enumerate(sentence):
                before, after = self.templates[min(view, len(self.templates) - 1)]
                sequences.append(before + ids + after)
        longest = max(map(len, sequences))
        input_ids = torch.full((len(sequences), longest), self.pad_token_id)
        attention_mask = torch.zeros_like(input_ids)
        for row, ids in enumerate(sequences):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            attention_mask[row, : len(ids)] = 1
        shape = (len(rows), len(views), longest)
        collated = {"input_ids": input_ids.view(shape), "attention_mask": attention_mask.view(shape)}
        return collated if labels is None else {**collated, "labels": torch.tensor(labels)}


def cut_into_batches(
    rows: torch.Tensor,
    batch_size: int,
    *,
    window: int = 0,
    lengths: torch.Tensor | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Shuffled row numbers to batches; with a window, to batches of rows of similar length, little of it padding.

    Args:
        rows: `(n,)`, in the order drawn.
        window: batches whose rows are sorted by length among themselves; 0 leaves the order as drawn.
        lengths: of every row, by its number; a window needs them.
        generator: draws the order of such batches, which would else come shortest first.

    Example:
        >>> rows, lengths = torch.tensor([3, 1, 0, 2]), torch.tensor([9, 2, 8, 1])
        >>> cut_into_batches(rows, 2)
        [[3, 1], [0, 2]]
        >>> sorted(cut_into_batches(rows, 2, window=2, lengths=lengths, generator=torch.Generator()))
        [[2, 0], [3, 1]]
    """
    if not window or lengths is None:
        return [batch.tolist() for batch in rows.split(batch_size)]
    windows = rows.split(window * batch_size)
    sorted_rows = torch.cat([rows[lengths[rows].argsort(stable=True)] for rows in windows])
    batches = sorted_rows.split(batch_size)
    return [batches[i].tolist() for i in torch.randperm(len(batches), generator=generator).tolist()]


def row_lengths(rows: datasets.Dataset) -> torch.Tensor:
    """Word pieces of the longest view of each tokenised row, `(n,)`."""
    table = rows.with_format("arrow")[:]
    columns = [pc.list_value_length(table[name]) for name in table.column_names if name.isdigit()]
    return torch.tensor(pc.max_element_wise(*columns).to_numpy())


class Batches(torch.utils.data.Dataset):
    """One process's share of every batch, a pure function of seed and number: nothing to restore on resume.

    Every epoch is its own permutation; the ragged batch of an epoch is kept, however small. Item `n` is batch n of the
    run, collated, with `rows`, the number of sentences that count: where a batch has fewer sentences than there are
    processes, the processes left over get one sentence that does not count.

    Args:
        sentences: tokenised rows.
        length_window: as `window` of `cut_into_batches`.
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
    ):
        self.sentences, self.collate = sentences, collate
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.length_window = length_window
        self.lengths = row_lengths(sentences) if length_window else None
        self.batches_per_epoch = -(-len(sentences) // batch_size)
        self._epoch: int | None = None
        self._batches: list[list[int]] = []

    def __getitem__(self, number: int) -> dict[str, Any]:
        batch = self.rows(number)
        share = own_share(batch, self.rank, self.world)
        return {**self.collate(self.sentences.__getitems__(share or batch[:1])), "rows": len(share)}

    def rows(self, number: int) -> list[int]:
        """Which sentences batch `number` holds, over all processes."""
        epoch, position = divmod(number, self.batches_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed + EPOCH_STRIDE * epoch)
            rows = torch.randperm(len(self.sentences), generator=generator)
            self._epoch = epoch
            self._batches = cut_into_batches(
                rows, self.batch_size, window=self.length_window, lengths=self.lengths, generator=generator
            )
        return self._batches[position]


class StreamedBatches(torch.utils.data.IterableDataset):
    """The same from a stream, shuffled in a buffer; `start` batches are passed over without tokenising them.

    Texts are not tokenised before their batch comes: a `length_window` goes by their characters.
    """

    def __init__(
        self,
        sentences: datasets.IterableDataset,
        collate: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]],
        *,
        batch_size: int,
        seed: int,
        rank: int,
        world: int,
        shuffle_buffer: int,
        start: int,
        length_window: int = 0,
    ):
        self.sentences, self.collate = sentences, collate
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.shuffle_buffer, self.start, self.length_window = shuffle_buffer, start, length_window

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, batch in enumerate(self._batches()):
            if number >= self.start:
                share = own_share(batch, self.rank, self.world)
                yield {**self.collate(share or batch[:1]), "rows": len(share)}

    def _rows(self, epoch: int) -> Iterator[dict[str, str]]:
        try:
            yield from self.sentences.shuffle(seed=self.seed + EPOCH_STRIDE * epoch, buffer_size=self.shuffle_buffer)
        except UnicodeDecodeError as error:
            raise UserError(f"the stream is not UTF-8 ({one_line(error)})") from error

    def _batches(self) -> Iterator[list[dict[str, str]]]:
        if next(iter(self.sentences), None) is None:
            raise UserError("the stream holds no sentences")
        for epoch in itertools.count():
            generator = torch.Generator().manual_seed(self.seed + EPOCH_STRIDE * epoch)
            stream = self._rows(epoch)
            while rows := list(itertools.islice(stream, self.batch_size * max(1, self.length_window))):
                lengths = torch.tensor([max(len(text) for text in row.values()) for row in rows])
                numbers = torch.arange(len(rows))
                for batch in cut_into_batches(
                    numbers, self.batch_size, window=self.length_window, lengths=lengths, generator=generator
                ):
                    yield [rows[i] for i in batch]


def own_share(batch: list, rank: int, world: int) -> list:
    """The rank's part of a batch, contiguous; the first ranks get the rows that do not divide.

    Example:
        >>> own_share([1, 2, 3], 0, 2), own_share([1, 2, 3], 1, 2), own_share([1], 1, 2)
        ([1, 2], [3], [])
    """
    size, more = divmod(len(batch), world)
    first = rank * size + min(rank, more)
    return batch[first : first + size + (rank < more)]
