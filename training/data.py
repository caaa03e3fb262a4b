"""Training sentences: read through `datasets`, checked, tokenised once, collated into views."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
import torch
from datasets.exceptions import DatasetGenerationError
from pandas.errors import ParserWarning
from transformers import PreTrainedTokenizerBase

from .errors import UserError, one_line
from .prompts import Template
from .recipes import Recipe

logger = logging.getLogger(__name__)

# "NA" and "None" are words; a row with a cell more than the header must not shift its columns.
CSV = {"keep_default_na": False, "index_col": False}
BUILDERS = {
    ".txt": ("text", {"encoding": "utf-8-sig"}),  # a byte-order mark is no part of the first sentence
    ".csv": ("csv", CSV),
    ".tsv": ("csv", {**CSV, "sep": "\t"}),
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".parquet": ("parquet", {}),
}


def load_sentences(recipe: Recipe) -> datasets.Dataset | datasets.IterableDataset:
    """The training texts, one column a view (`0` the anchor, `1` the positive, `2` the hard negative).

    A row whose anchor is blank is skipped and counted; any other blank cell becomes one space, as in SimCSE's release.

    Raises:
        UserError: the file, its encoding, its columns or the network; the line says which option replaces it.
    """
    source, loaded = _load(recipe)
    with _reading(source, recipe):
        names = loaded.column_names or list(next(iter(loaded), {}))  # a stream may know them by its first row only
    if not names:
        raise UserError(f"{source} holds no sentences")
    columns = recipe.text_columns or _only_column(source, names)
    if missing := [column for column in columns if column not in names]:
        raise UserError(
            f"{source} has no column {', '.join(missing)}: it has {', '.join(names)}; "
            "name the columns of anchor, positive and hard negative with --text_columns"
        )
    if not 1 <= len(columns) <= 3:
        raise UserError(f"text_columns: {len(columns)} given, one to three are meant")
    loaded = loaded.select_columns(columns)
    if recipe.streaming:
        kept = loaded.map(_clean, batched=True, fn_kwargs={"columns": columns}, remove_columns=columns)
        return kept.take(recipe.max_train_sentences) if recipe.max_train_sentences else kept
    wrong = [c for c in columns if loaded.features[c].dtype not in ("string", "large_string", "null")]
    if wrong:
        raise UserError(f"{source}: column {wrong[0]} holds {loaded.features[wrong[0]].dtype}, not text")
    if recipe.max_train_sentences:
        loaded = loaded.select(range(min(recipe.max_train_sentences, len(loaded))))
    with _reading(source, recipe):
        kept = loaded.map(
            _clean, batched=True, fn_kwargs={"columns": columns}, remove_columns=columns, desc="Checking sentences"
        )
    if len(kept) < len(loaded):
        logger.info("%s: %d blank lines skipped", source, len(loaded) - len(kept))
    if len(kept) == 0:
        raise UserError(f"{source} holds no sentences")
    return kept


def _load(recipe: Recipe):
    """What to call the source, and its rows."""
    if recipe.train_file:
        path = Path(recipe.train_file)
        suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        if not path.is_file():
            raise UserError(f"train_file: {path} {'is not a file' if path.exists() else 'does not exist'}")
        if suffix not in BUILDERS:
            raise UserError(f"train_file: {path} is none of {', '.join(BUILDERS)} (or one of them with .gz)")
        if path.stat().st_size == 0:
            raise UserError(f"train_file: {path} is empty")
        builder, options = BUILDERS[suffix]
        where, options = builder, {"data_files": str(path), **options}
    elif recipe.dataset:
        where = recipe.dataset
        options = {"data_files": recipe.dataset_file, "revision": recipe.dataset_revision}
    else:
        raise UserError("train_file: give --train_file (text, CSV, TSV, JSON Lines or Parquet) or --dataset")
    source = recipe.train_file or f"{recipe.dataset}/{recipe.dataset_file or ''}".rstrip("/")
    with _reading(source, recipe):
        return source, datasets.load_dataset(where, split="train", streaming=recipe.streaming, **options)


@contextmanager
def _reading(source: str, recipe: Recipe):
    """Say in one line what `datasets` could not read, and where."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ParserWarning)  # cells that would be dropped
            yield
    except (DatasetGenerationError, ParserWarning, EOFError, OSError, ValueError) as error:
        reason = one_line(error.__cause__ or error)
        if recipe.train_file:
            _raise_bad_utf8(Path(recipe.train_file))
            raise UserError(f"{source} could not be read ({reason})") from error
        raise UserError(f"{source} could not be loaded ({reason}); give --train_file a local file instead") from error


def _raise_bad_utf8(path: Path) -> None:
    """Name the first line that is not UTF-8, if there is one."""
    if path.suffix in (".gz", ".parquet"):
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start})") from None


def _only_column(source: str, names: list[str]) -> list[str]:
    if "text" in names:
        return ["text"]
    if len(names) == 1:
        return names
    raise UserError(f"{source} has the columns {', '.join(names)}: say which hold sentences with --text_columns")


def _clean(batch: dict[str, list], columns: list[str]) -> dict[str, list[str]]:
    for column in columns:
        if wrong := [text for text in batch[column] if not isinstance(text, str | type(None))]:
            raise UserError(f"column {column} holds {wrong[0]!r}, not text")
    kept = [i for i, text in enumerate(batch[columns[0]]) if text is not None and text.strip()]

    def cell(text):
        return text if text is not None and text.strip() else " "

    return {str(view): [cell(batch[column][i]) for i in kept] for view, column in enumerate(columns)}


def tokenize(batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, list]:
    """Ids of each column's sentences, alone and without special tokens, cut at `length`."""
    options = {"add_special_tokens": False, "truncation": True, "max_length": length, "return_attention_mask": False}
    return {
        column: tokenizer(texts, return_token_type_ids=False, **options).input_ids for column, texts in batch.items()
    }


# Far apart, so that no seed's later epoch is another seed's first.
EPOCH_STRIDE = 1_000_003


class ViewCollator:
    """Rows of token ids to one padded batch of views `(B, V, T)`.

    Args:
        templates: ids before and after the sentence, one for each view (the last for all further views).
        pad_token_id: fills rows up to the longest of the batch.
        tokenize: applied first where rows still hold texts (streams).
    """

    def __init__(self, templates: list[Template], pad_token_id: int, tokenize=None):
        self.templates = templates
        self.pad_token_id = pad_token_id
        self.tokenize = tokenize

    def __call__(self, rows: list[dict[str, object]]) -> dict[str, torch.Tensor]:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        if self.tokenize:
            columns = self.tokenize(columns)
        # A sentence alone is its own positive.
        views = [columns[str(min(view, len(columns) - 1))] for view in range(max(2, len(columns)))]
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
        return {"input_ids": input_ids.view(shape), "attention_mask": attention_mask.view(shape)}


class Batches(torch.utils.data.Dataset):
    """One process's share of every batch, a pure function of seed and number: nothing to restore on resume.

    Every epoch is its own permutation; the last batch of an epoch is kept, however ragged. Item `n` is batch n of the
    run, collated, with `rows`, the number of sentences that count: where a batch has fewer sentences than there are
    processes, the processes left over get one sentence that does not count.
    """

    def __init__(self, sentences, collate: ViewCollator, *, batch_size: int, seed: int, rank: int, world: int):
        self.sentences, self.collate = sentences, collate
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.batches_per_epoch = -(-len(sentences) // batch_size)
        self._epoch, self._permutation = None, None

    def __getitem__(self, number: int) -> dict[str, object]:
        epoch, position = divmod(number, self.batches_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed + EPOCH_STRIDE * epoch)
            self._epoch, self._permutation = epoch, torch.randperm(len(self.sentences), generator=generator).tolist()
        batch = self._permutation[position * self.batch_size : (position + 1) * self.batch_size]
        share = own_share(batch, self.rank, self.world)
        return {**self.collate(self.sentences.__getitems__(share or batch[:1])), "rows": len(share)}


class StreamedBatches(torch.utils.data.IterableDataset):
    """The same from a stream, shuffled in a buffer; `start` batches are passed over without tokenising them."""

    def __init__(self, sentences, collate: ViewCollator, *, batch_size, seed, rank, world, shuffle_buffer, start):
        self.sentences, self.collate = sentences, collate
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.shuffle_buffer, self.start = shuffle_buffer, start

    def __iter__(self) -> Iterator[dict[str, object]]:
        for number, batch in enumerate(self._batches()):
            if number >= self.start:
                share = own_share(batch, self.rank, self.world)
                yield {**self.collate(share or batch[:1]), "rows": len(share)}

    def _rows(self, epoch: int):
        try:
            yield from self.sentences.shuffle(seed=self.seed + EPOCH_STRIDE * epoch, buffer_size=self.shuffle_buffer)
        except UnicodeDecodeError as error:
            raise UserError(f"the stream is not UTF-8 ({one_line(error)})") from error

    def _batches(self):
        if next(iter(self.sentences), None) is None:
            raise UserError("the stream holds no sentences")
        for epoch in itertools.count():
            batch = []
            for row in self._rows(epoch):
                batch.append(row)
                if len(batch) == self.batch_size:
                    yield batch
                    batch = []
            if batch:
                yield batch


def own_share(batch: list, rank: int, world: int) -> list:
    """The rank's part of a batch, contiguous; the first ranks get the rows that do not divide.

    Example:
        >>> own_share([1, 2, 3], 0, 2), own_share([1, 2, 3], 1, 2), own_share([1], 1, 2)
        ([1, 2], [3], [])
    """
    size, more = divmod(len(batch), world)
    first = rank * size + min(rank, more)
    return batch[first : first + size + (rank < more)]
