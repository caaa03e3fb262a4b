"""Where training texts come from: a local file, a directory, or a data set of the Hub, read with `datasets`."""

from __future__ import annotations

import csv
import glob
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import fsspec
import pandas
import pyarrow
import pyarrow.parquet
from datasets.packaged_modules.csv.csv import CsvConfig
from datasets.packaged_modules.json.json import JsonConfig
from pandas.errors import ParserError, ParserWarning

from ..errors import UserError, is_defect, one_line, quoted
from ..files import refuse_utf16
from ..hub import cached_data, files_sha256
from .json_files import json_dataset
from .local_files import is_saved, open_file, plain_strings, raise_bad_utf8, suffix_of

Rows: TypeAlias = datasets.Dataset | datasets.IterableDataset
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


@contextmanager
def torn_rows_are_errors() -> Iterator[None]:
    """Let `datasets` raise an error where pandas would drop the cells of a row, and not log its errors too."""
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ParserWarning)
            yield
    finally:
        datasets.logging.set_verbosity(verbosity)


@dataclass
class Source:
    """A file or a data set of texts, and the option with which a user can name another file."""

    option: str
    file: str | None
    dataset: str | None = None
    dataset_file: str | None = None
    revision: str | None = None
    streaming: bool = False

    @property
    def name(self) -> str:
        return self.file or f"{self.dataset}/{self.dataset_file or ''}".rstrip("/")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn the errors of `datasets` into one line that says what could not be read, and where."""
        try:
            with torn_rows_are_errors():
                yield
        except UserError:
            raise
        except Exception as error:  # of many types, when pyarrow or pandas reads content that it does not expect
            if is_defect(error):
                raise
            cause = error.__cause__ or error
            reason = one_line(cause)
            if self.file:
                raise_bad_utf8(Path(self.file))
                torn = isinstance(cause, ParserError) and suffix_of(self.file) == ".csv"
                quotes = "; a text with a comma in it must be in quotes" if torn else ""
                raise UserError(f"{self.name} could not be read ({reason}){quotes}") from error
            raise UserError(
                f"{self.name} could not be loaded ({reason}); give --{self.option} a local file instead"
            ) from error

    def read(self) -> Rows:
        """Read the rows, with every text as it stands. An error names the option to set."""
        if self.file:
            self.refuse_file(Path(self.file))
            with self.reading():
                return self._read_files([self.file], suffix_of(self.file))
        if not self.dataset:
            other = self.option.replace("train_file", "dataset").replace("nli_file", "nli_dataset")
            raise UserError(
                f"{self.option}: not given; give --{self.option} (text, CSV, TSV, JSON Lines or Parquet) or --{other}"
            )
        with self.reading():
            if is_saved(self.dataset):
                loaded = datasets.load_from_disk(self.dataset)
                rows = loaded["train"] if isinstance(loaded, datasets.DatasetDict) else loaded
                return rows.to_iterable_dataset() if self.streaming else rows
            local = os.path.isdir(self.dataset)
            where = self.dataset if local else cached_data(self.dataset, self.revision)
            return self._read_directory(str(where)) if where else self._read_hub()

    def files_in(self, directory: str) -> list[str]:
        """Return the files of a data set in a directory."""
        builder = datasets.load_dataset_builder(directory, data_files=self.dataset_file)
        return list((builder.config.data_files or {}).get("train", []))

    def names(self, loaded: Rows) -> list[str]:
        """Return the names of the columns of loaded rows."""
        with self.reading():
            names = loaded.column_names or list(next(iter(loaded), {}))  # a stream may need its first row for them
        if not names:
            raise UserError(f"{self.name} has no sentences; give a file with at least one")
        return names

    def columns(self, names: list[str], columns: list[str] | None, option: str) -> list[str]:
        """Return the columns named by an option; by default `text`, or the only column."""
        header, separator = self._header()
        if columns is None and len(header) == 1 and (others := [each for each in SEPARATORS if each in header[0]]):
            raise UserError(
                f"{self.name}: its header {quoted(header[0])} seems to be separated by {others[0]!r}, but the file is "
                f"read with {separator!r}; rewrite it, or name its only column with --{option}"
            )
        if columns is None and ("text" in names or len(names) == 1):
            columns = ["text"] if "text" in names else names
        if columns is None:
            raise UserError(
                f"{self.name} has the columns {', '.join(names)}; give the ones with sentences as --{option}"
            )
        if repeated := [column for column in columns if columns.count(column) > 1]:
            raise UserError(f"{option}: {repeated[0]} is given twice; give different columns")
        if repeated := [column for column in columns if header.count(column) > 1]:
            raise UserError(f"{self.name}: its header has the column {repeated[0]} twice; rename one of them")
        if missing := [column for column in columns if column not in names]:
            raise UserError(
                f"{self.name} has no column {', '.join(missing)}, only {', '.join(names)}; "
                f"give existing columns as --{option}"
            )
        return columns

    def _header(self) -> tuple[list[str], str]:
        """Return the names in the first row of a local CSV or TSV file, and its separator; none for other files.

        pandas renames a column that is there twice.
        """
        suffix = suffix_of(self.file) if self.file else ""
        if suffix not in (".csv", ".tsv"):
            return [], ""
        options = BUILDERS[suffix][1]
        separator, quoting = options.get("sep", ","), options.get("quoting", csv.QUOTE_MINIMAL)
        with self.reading(), open_file(Path(str(self.file))) as file:
            lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
            return next(csv.reader(lines, delimiter=separator, quoting=quoting), []), separator

    def refuse_file(self, path: Path) -> None:
        """Refuse a file whose name, kind or size cannot be read."""
        if not path.is_file():
            raise UserError(f"{self.option}: {path} {'is not a file' if path.exists() else 'does not exist'}")
        if suffix_of(path.name) not in BUILDERS:
            raise UserError(f"{self.option}: {path} must end in one of {', '.join(BUILDERS)} (also with .gz)")
        if path.stat().st_size == 0:
            raise UserError(f"{self.option}: {path} is empty")
        if "::" in str(path):
            raise UserError(
                f"{self.option}: {path} has `::` in its name, a chain of addresses for `datasets`; rename it"
            )
        if len(self._header()[0]) > MOST_COLUMNS:  # pandas would need minutes
            raise UserError(f"{self.option}: {path} has more than {MOST_COLUMNS:,} columns; give a file with fewer")

    def _read_files(self, files: list[str], suffix: str) -> Rows:
        """Read local files of one kind.

        pandas would read `007` as 7 wherever 10,000 rows look like numbers, and `datasets` does not know the type of
        texts in the Parquet files of Polars.
        """
        builder, options = BUILDERS[suffix]
        if builder == "json":
            return json_dataset(files, streaming=self.streaming)
        for file in files if builder != "parquet" else []:
            with open_file(Path(file)) as content:
                refuse_utf16(Path(file), content.read(4096))
        if builder == "csv":
            options = {**options, "features": _text_features(pandas.read_csv(files[0], nrows=0, **options).columns)}
        elif builder == "parquet":
            schema = pyarrow.parquet.read_schema(files[0])
            if any(pyarrow.types.is_string_view(field.type) for field in schema):
                options = {"features": datasets.Features.from_arrow_schema(plain_strings(schema))}
        local = self.file or os.path.isdir(str(self.dataset))  # a file in the cache of the Hub is never another
        if local and not self.streaming:  # otherwise `datasets` would know the files by their paths and times alone
            options = {**options, "name": files_sha256(files)}
        patterns = [glob.escape(file) for file in files]
        return datasets.load_dataset(builder, split="train", streaming=self.streaming, data_files=patterns, **options)

    def _read_directory(self, directory: str) -> Rows:
        files = self.files_in(directory)
        suffixes = {suffix_of(file) for file in files}
        if len(suffixes) == 1 and (suffix := suffixes.pop()) in BUILDERS:
            return self._read_files(files, suffix)
        return self._load(directory)

    def _read_hub(self) -> Rows:
        """Read a data set on the Hub. One that declares the types of its columns is read as it says."""
        builder = datasets.load_dataset_builder(
            str(self.dataset), data_files=self.dataset_file, revision=self.revision
        )
        config, options = builder.config, {}
        files = [] if builder.info.features else list((config.data_files or {}).get("train", []))
        if isinstance(config, JsonConfig) and files and not config.field:
            local = files if self.streaming else datasets.DownloadManager().download_and_extract(files)
            try:
                return json_dataset(local, streaming=self.streaming)
            except UserError as error:
                raise UserError(f"{self.name}: {error}") from error
        if isinstance(config, CsvConfig) and files:
            with fsspec.open(files[0], compression="infer") as file:
                names = pandas.read_csv(file, nrows=0, sep=config.sep, quoting=config.quoting).columns
            options = {"features": _text_features(names), "keep_default_na": False}
        return self._load(str(self.dataset), **options)

    def _load(self, where: str, **options: Any) -> Rows:
        options |= {"data_files": self.dataset_file, "revision": self.revision}
        return datasets.load_dataset(where, split="train", streaming=self.streaming, **options)


def _text_features(names: pandas.Index) -> datasets.Features:
    return datasets.Features(dict.fromkeys(names, datasets.Value("string")))
