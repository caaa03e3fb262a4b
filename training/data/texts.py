"""Read training texts with `datasets`, and check them."""

from __future__ import annotations

import csv
import glob
import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
from datasets.exceptions import DatasetGenerationError
from datasets.packaged_modules.csv.csv import CsvConfig
from pandas.errors import ParserWarning

from csezoo.modeling.contrastive.natural_language_inference import LABELS

from ..errors import UserError, one_line, quoted
from ..evaluation.tasks.sts import STSB_SPLITS, load_all_sentences, load_task
from ..files import UNREADABLE, refuse_utf16
from ..hub import cached_data, sha256
from ..recipes import Recipe
from ..recipes.keys import STS_SENTENCES, STSB_SENTENCES
from .local_files import (
    is_saved,
    json_dataset,
    json_kinds,
    open_file,
    raise_bad_utf8,
    refuse_deep,
    refuse_null,
    suffix_of,
    without_views,
)

logger = logging.getLogger(__name__)

# "NA" and "None" are words, not missing values. A row with more cells than the header must not shift its columns.
CSV: dict[str, Any] = {"keep_default_na": False, "index_col": False}
# A quotation mark in TSV is part of the text, as in the files of GLUE and of sentence-transformers.
TSV: dict[str, Any] = {**CSV, "sep": "\t", "quoting": csv.QUOTE_NONE}
BUILDERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".txt": ("text", {"encoding": "utf-8-sig"}),  # a byte-order mark is not part of the first sentence
    ".csv": ("csv", CSV),
    ".tsv": ("csv", TSV),
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".parquet": ("parquet", {}),
}

MOST_COLUMNS = 1000  # of a CSV file
SEPARATORS = (";", "\t", "|", ",")
# `datasets` raises errors of many types when pyarrow reads content that it does not expect.
READ_ERRORS = (
    csv.Error,
    DatasetGenerationError,
    ParserWarning,
    pyarrow.ArrowException,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    *UNREADABLE,
)


@dataclass
class Source:
    """A file or a data set of texts, and the option with which a user can name another file."""

    option: str
    file: str | None
    dataset: str | None
    dataset_file: str | None
    revision: str | None
    streaming: bool = False

    @property
    def name(self) -> str:
        return self.file or f"{self.dataset}/{self.dataset_file or ''}".rstrip("/")


def load_sentences(recipe: Recipe) -> datasets.Dataset | datasets.IterableDataset:
    """Load the training texts of a recipe, with one numbered column for each of `text_columns`.

    Column `0` is the anchor, `1` the positive, `2` the hard negative. Rows with a blank anchor are skipped and
    counted. Any other blank cell becomes one space, as in SimCSE's release.

    Raises:
        UserError: the file, its encoding or its columns cannot be used, or the Hub cannot be reached. The error names
            the option to set.
    """
    if not recipe.train_file and recipe.dataset in (STSB_SENTENCES, STS_SENTENCES):
        return _keep(_sts_sentences(recipe), recipe.train_fraction, recipe.fraction_seed).rename_column("text", "0")
    source = Source(
        "train_file",
        recipe.train_file,
        recipe.dataset,
        recipe.dataset_file,
        recipe.dataset_revision,
        streaming=recipe.streaming,
    )
    loaded = _read(source)
    columns = _columns(source, _names(source, loaded), recipe.text_columns, "text_columns")
    if not 1 <= len(columns) <= 3:
        raise UserError(f"text_columns: expected one to three columns, got {len(columns)}")
    loaded = loaded.select_columns(columns)
    if first := recipe.max_train_sentences:
        loaded = loaded.take(first if recipe.streaming else min(first, len(loaded)))
    if recipe.streaming:
        return loaded.map(_clean, batched=True, fn_kwargs={"columns": columns}, remove_columns=columns)
    return _keep(_checked(source, loaded, columns), recipe.train_fraction, recipe.fraction_seed)


def streamed_files(recipe: Recipe) -> list[str]:
    """Return the files that a recipe streams from a local directory, in order; none for any other data."""
    if recipe.train_file or not recipe.streaming or not os.path.isdir(str(recipe.dataset)):
        return []
    if is_saved(str(recipe.dataset)):
        return sorted(map(str, Path(str(recipe.dataset)).rglob("*.arrow")))
    source = Source("train_file", None, recipe.dataset, recipe.dataset_file, None, streaming=True)
    return _files_in(source, str(recipe.dataset))


def stream_texts(file: str, column: str | None = None) -> Iterator[str]:
    """Yield the texts of a file in constant memory, one for each row, including blank ones.

    Args:
        file: in a format of `train_file`.
        column: of the texts; by default `text`, or the only column.

    Raises:
        UserError: the file, its encoding or its columns cannot be used, or a row has no text.
    """
    source = Source("file", file, None, None, None, streaming=True)
    loaded = _read(source)
    (column,) = _columns(source, _names(source, loaded), [column] if column else None, "column")
    batches, rows = loaded.select_columns([column]).iter(batch_size=1000), 0
    while True:
        with _reading(source):
            batch = next(batches, None)
        if batch is None:
            return
        for text in batch[column]:
            rows += 1
            if not isinstance(text, str):
                raise UserError(f"{file}, row {rows}: column {column} must be text, got {text!r}")
            yield text


def stream_lines(file: str) -> Iterator[str]:
    """Yield the lines of a plain text file, also as `.gz`, with the blank ones.

    Raises:
        UserError: there is no such file, or it is not UTF-8.
    """
    path = Path(file)
    if not path.is_file():
        raise UserError(f"file: {path} {'is not a file' if path.exists() else 'does not exist'}")
    try:
        with open_file(path) as lines:
            refuse_utf16(path, lines.read(4096))
            lines.seek(0)
            yield from io.TextIOWrapper(lines, encoding="utf-8-sig")
    except (UnicodeDecodeError, *UNREADABLE) as error:
        raise_bad_utf8(path)
        raise UserError(f"{path} could not be read ({one_line(error)})") from error


def load_labelled(recipe: Recipe, classes: int) -> datasets.Dataset:
    """Load labelled sentence pairs: triplets in columns `0`, `1`, `2`, or pairs in `0`, `1` with a number in `label`.

    Args:
        classes: 2 reads triplets (premise, entailed and contradicted hypothesis). 3 reads pairs with a label, by name
            or by number as on the Hub (0 entailment, 1 neutral, 2 contradiction). Pairs without a gold label ("-",
            -1) are left out.

    Raises:
        UserError: as in `load_sentences`, or a label is not in `natural_language_inference.LABELS`.
    """
    source = Source(
        "nli_file", recipe.nli_file, recipe.nli_dataset, recipe.nli_dataset_file, recipe.nli_dataset_revision
    )
    loaded = _read(source)
    if not {"sentence1", "sentence2", "score"} - {*_names(source, loaded)}:
        raise UserError(
            f"nli_file: {source.name} has graded pairs, which choose the best checkpoint and do not train; give them "
            "as --dev_file, and labelled pairs or triplets here"
        )
    if recipe.nli_columns is None or len(recipe.nli_columns) != 3:
        expected = "premise, entailed and contradicted hypothesis" if classes == 2 else "premise, hypothesis and label"
        raise UserError(f"nli_columns: name three columns of {source.name}: {expected}")
    columns = _columns(source, _names(source, loaded), recipe.nli_columns, "nli_columns")
    loaded = loaded.select_columns(columns)
    if classes == 2:
        return _keep(_checked(source, loaded, columns), recipe.nli_fraction, recipe.fraction_seed)
    options = {"column": columns[2], "source": source.name}
    loaded = loaded.map(_number_labels, batched=True, with_indices=True, fn_kwargs=options, remove_columns=columns[2:])
    checked = _checked(source, loaded, columns[:2], others=[LABEL_NUMBER])
    return _keep(checked.rename_column(LABEL_NUMBER, "label"), recipe.nli_fraction, recipe.fraction_seed)


# The label numbers of NLI data sets on the Hub.
HUB_LABELS: dict[Any, str] = {0: "entailment", 1: "neutral", 2: "contradiction"}
HUB_LABELS |= {str(number): label for number, label in HUB_LABELS.items()}  # as a CSV file has them
# The column of label numbers until the text columns are renamed. A file may have texts in a column named `label`.
LABEL_NUMBER = "label: number"


def _number_labels(batch: dict[str, list], rows: list[int], column: str, source: str) -> dict[str, list]:
    """Replace labels by their index in `LABELS`, and drop rows without a gold label."""
    # By type, because a list has no hash and True equals 1.
    labels = [HUB_LABELS.get(label, label) if type(label) in (int, float, str) else label for label in batch[column]]
    kept = [i for i, label in enumerate(labels) if label not in ("-", -1, "-1", "", None)]
    if wrong := [i for i in kept if labels[i] not in LABELS]:
        place = f"{source}, row {rows[wrong[0]] + 1}"
        raise UserError(f"{place}: {column} {labels[wrong[0]]!r} must be one of {', '.join(LABELS)}")
    rest = {name: [values[i] for i in kept] for name, values in batch.items() if name != column}
    return {**rest, LABEL_NUMBER: [LABELS.index(labels[i]) for i in kept]}


def _sts_sentences(recipe: Recipe) -> datasets.Dataset:
    """Return both sentences of every pair, with duplicates: of STS-B (SG-OPT), or of all STS data sets (ConSERT)."""
    if recipe.eval_data == "none":
        raise UserError(f"dataset: {recipe.dataset} needs --eval_data hub, or a directory in SentEval's layout")
    if recipe.dataset == STS_SENTENCES:
        sentences = load_all_sentences(recipe.eval_data)
    else:
        pairs = [pair for split in STSB_SPLITS for pair in load_task(split, recipe.eval_data).pairs]
        sentences = [sentence for pair in pairs for sentence in pair]
    return datasets.Dataset.from_dict({"text": sentences[: recipe.max_train_sentences]})


def _keep(rows: datasets.Dataset, fraction: float, seed: int) -> datasets.Dataset:
    """Keep each row with a probability. The random choice depends only on the seed."""
    if fraction == 1:
        return rows
    kept = np.flatnonzero(np.random.default_rng(seed).random(len(rows)) < fraction)
    if len(kept) == 0:
        raise UserError(
            f"a fraction of {fraction} keeps none of {len(rows)} rows; raise train_fraction or nli_fraction"
        )
    return rows.select(kept)


def _names(source: Source, loaded: datasets.Dataset | datasets.IterableDataset) -> list[str]:
    with _reading(source):
        names = loaded.column_names or list(next(iter(loaded), {}))  # a stream may need its first row to know them
    if not names:
        raise UserError(f"{source.name} has no sentences; give a file with at least one")
    return names


def _columns(source: Source, names: list[str], columns: list[str] | None, option: str) -> list[str]:
    """Return the columns named by an option; by default `text`, or the only column."""
    header, separator = _header(source)
    if columns is None and len(header) == 1 and (others := [each for each in SEPARATORS if each in header[0]]):
        raise UserError(
            f"{source.name}: its header {quoted(header[0])} seems to be separated by {others[0]!r}, but the file is "
            f"read with {separator!r}; rewrite it, or name its only column with --{option}"
        )
    if columns is None and ("text" in names or len(names) == 1):
        columns = ["text"] if "text" in names else names
    if columns is None:
        raise UserError(
            f"{source.name} has the columns {', '.join(names)}; give the ones with sentences as --{option}"
        )
    if repeated := [column for column in columns if columns.count(column) > 1]:
        raise UserError(f"{option}: {repeated[0]} is given twice; give different columns")
    if repeated := [column for column in columns if header.count(column) > 1]:
        raise UserError(f"{source.name}: its header has the column {repeated[0]} twice; rename one of them")
    if missing := [column for column in columns if column not in names]:
        raise UserError(
            f"{source.name} has no column {', '.join(missing)}, only {', '.join(names)}; "
            f"give existing columns as --{option}"
        )
    return columns


def _header(source: Source) -> tuple[list[str], str]:
    """Return the names in the first row of a local CSV or TSV file, and its separator; no names for other files.

    pandas renames a column that is there twice.
    """
    suffix = suffix_of(source.file) if source.file else ""
    if suffix not in (".csv", ".tsv"):
        return [], ""
    options = BUILDERS[suffix][1]
    separator, quoting = options.get("sep", ","), options.get("quoting", csv.QUOTE_MINIMAL)
    with _reading(source), open_file(Path(str(source.file))) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
        return next(csv.reader(lines, delimiter=separator, quoting=quoting), []), separator


def _checked(
    source: Source, loaded: datasets.Dataset, columns: list[str], others: list[str] | None = None
) -> datasets.Dataset:
    """Number the text columns, drop blank rows, and keep the other columns unchanged."""
    schema = loaded.features.arrow_schema
    kinds = {column: str(schema.field(column).type) for column in columns}
    if wrong := [column for column, kind in kinds.items() if kind not in ("string", "large_string", "null")]:
        raise UserError(f"{source.name}: column {wrong[0]} must be text, got {kinds[wrong[0]]}")
    options = {"columns": columns, "others": others or []}
    with _reading(source):
        kept = loaded.map(_clean, batched=True, fn_kwargs=options, remove_columns=columns, desc="Checking sentences")
    if len(kept) < len(loaded):
        logger.info("%s: %d blank lines skipped", source.name, len(loaded) - len(kept))
    if len(kept) == 0:
        raise UserError(f"{source.name} has no sentences; give a file with at least one")
    return kept


def _read(source: Source) -> datasets.Dataset | datasets.IterableDataset:
    if source.file:
        path = Path(source.file)
        suffix = suffix_of(source.file)
        if not path.is_file():
            raise UserError(f"{source.option}: {path} {'is not a file' if path.exists() else 'does not exist'}")
        if suffix not in BUILDERS:
            raise UserError(f"{source.option}: {path} must end in one of {', '.join(BUILDERS)} (also with .gz)")
        if path.stat().st_size == 0:
            raise UserError(f"{source.option}: {path} is empty")
        if "::" in str(path):
            raise UserError(
                f"{source.option}: {path} has `::` in its name, a chain of addresses for `datasets`; rename it"
            )
        if len(_header(source)[0]) > MOST_COLUMNS:  # pandas would need minutes
            raise UserError(f"{source.option}: {path} has more than {MOST_COLUMNS:,} columns; give a file with fewer")
        if BUILDERS[suffix][0] == "json":
            refuse_null(path)
            refuse_deep(path)
        where, options = _options(source, [str(path)], suffix)
        if not source.streaming:  # otherwise `datasets` would know the file by its path and time alone
            options["name"] = sha256(path)
    elif source.dataset:
        where = source.dataset
        options = {"data_files": source.dataset_file, "revision": source.revision}
        if is_saved(where):
            return _saved(source)
        if not os.path.isdir(where):
            with _reading(source):
                where = str(cached_data(where, source.revision) or where)
        if os.path.isdir(where) and (files := _files_in(source, where)):
            suffixes = {suffix_of(file) for file in files}
            if len(suffixes) == 1 and (suffix := suffixes.pop()) in BUILDERS:
                where, options = _options(source, files, suffix)
    else:
        other = source.option.replace("train_file", "dataset").replace("nli_file", "nli_dataset")
        raise UserError(
            f"{source.option}: not given; give --{source.option} (text, CSV, TSV, JSON Lines or Parquet) or --{other}"
        )
    with _reading(source):
        if where == "json" and source.file and (kinds := json_kinds(source.file, first=source.streaming)):
            return json_dataset(source.file, kinds, streaming=source.streaming)
        if where == source.dataset and not os.path.isdir(where):
            options |= _csv_options_of_hub(source)
        return datasets.load_dataset(where, split="train", streaming=source.streaming, **options)


def _csv_options_of_hub(source: Source) -> dict[str, Any]:
    """Return the options with which the CSV files of a data set on the Hub are read as text, as local files are.

    A data set that declares the types of its columns is read as it says.
    """
    builder = datasets.load_dataset_builder(
        str(source.dataset), data_files=source.dataset_file, revision=source.revision
    )
    if not isinstance(builder.config, CsvConfig) or builder.info.features:
        return {}
    with fsspec.open(builder.config.data_files["train"][0], compression="infer") as file:
        names = pandas.read_csv(file, nrows=0, sep=builder.config.sep, quoting=builder.config.quoting).columns
    return {"features": datasets.Features(dict.fromkeys(names, datasets.Value("string"))), "keep_default_na": False}


def _saved(source: Source) -> datasets.Dataset | datasets.IterableDataset:
    with _reading(source):
        loaded = datasets.load_from_disk(str(source.dataset))
        rows = loaded["train"] if isinstance(loaded, datasets.DatasetDict) else loaded
        return rows.to_iterable_dataset() if source.streaming else rows


def _files_in(source: Source, directory: str) -> list[str]:
    """Return the files of a data set in a directory."""
    with _reading(source):
        builder = datasets.load_dataset_builder(directory, data_files=source.dataset_file)
        return list((builder.config.data_files or {}).get("train", []))


def _options(source: Source, files: list[str], suffix: str) -> tuple[str, dict[str, Any]]:
    """Return the builder for local files and its options, with which texts are read as they are.

    pandas would otherwise read `007` as 7 wherever 10,000 rows look like numbers, and `datasets` does not know the
    type of texts in the Parquet files of Polars.
    """
    builder, options = BUILDERS[suffix]
    with _reading(source):
        for file in files if builder != "parquet" else []:
            with open_file(Path(file)) as content:
                refuse_utf16(Path(file), content.read(4096))
        if builder == "csv":
            names = pandas.read_csv(files[0], nrows=0, **options).columns
            options = {**options, "features": datasets.Features(dict.fromkeys(names, datasets.Value("string")))}
        elif builder == "parquet":
            schema = pyarrow.parquet.read_schema(files[0])
            if any(pyarrow.types.is_string_view(field.type) for field in schema):
                options = {"features": datasets.Features.from_arrow_schema(without_views(schema))}
    return builder, {"data_files": [glob.escape(file) for file in files], **options}  # `datasets` reads patterns


@contextmanager
def _reading(source: Source) -> Iterator[None]:
    """Turn the errors of `datasets` into one line that says what could not be read, and where."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ParserWarning)  # otherwise pandas drops the extra cells
            yield
    except READ_ERRORS as error:
        reason = one_line(error.__cause__ or error)
        if source.file:
            raise_bad_utf8(Path(source.file))
            raise UserError(f"{source.name} could not be read ({reason})") from error
        raise UserError(
            f"{source.name} could not be loaded ({reason}); give --{source.option} a local file instead"
        ) from error


def _clean(batch: dict[str, list], columns: list[str], others: tuple[str, ...] = ()) -> dict[str, list]:
    """Drop rows with a blank anchor, and replace other blank cells by one space."""
    for column in columns:
        if wrong := [text for text in batch[column] if not isinstance(text, str | type(None))]:
            raise UserError(f"column {column} must be text, got {wrong[0]!r}")
    kept = [i for i, text in enumerate(batch[columns[0]]) if text is not None and text.strip()]

    def cell(text: str | None) -> str:
        return text if text is not None and text.strip() else " "

    texts = {str(view): [cell(batch[column][i]) for i in kept] for view, column in enumerate(columns)}
    return texts | {column: [batch[column][i] for i in kept] for column in others}
