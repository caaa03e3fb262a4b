"""JSON as Python reads it: pyarrow takes texts for dates, and the type of a column from its first megabytes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import datasets
import fsspec

from ..errors import UserError, one_line
from ..files import UNREADABLE, refuse_utf16
from ..hub import files_sha256
from .local_files import open_file, raise_bad_utf8

# The types of JSON values in a column, and the type of the column. Any other column has its JSON as bytes.
KINDS = {"": "string", "str": "string", "int": "int64", "float": "float64", "float int": "float64", "bool": "bool"}
OTHER = "binary"
FIRST_ROWS = 1000  # of a stream, which have all its columns


def json_dataset(files: Sequence[str], *, streaming: bool) -> datasets.Dataset | datasets.IterableDataset:
    """Read files (or addresses) with JSON Lines, a list of objects, or an object of columns; `.gz` too.

    Args:
        streaming: read the first rows alone, for the names of columns, and the others when they are needed.

    Raises:
        UserError: a file cannot be read, or a row is no object.
    """
    if streaming:
        names = dict.fromkeys(name for row in islice(json_rows(files), FIRST_ROWS) for name in row)
        # `datasets` divides lists among shards, and no tuples.
        return datasets.IterableDataset.from_generator(
            json_rows, gen_kwargs={"files": list(files), "columns": tuple(names)}
        )
    kinds = _kinds(files)
    features = datasets.Features({name: datasets.Value(kind) for name, kind in kinds.items()})
    options = {"files": list(files), "columns": tuple(kinds.items()), "content": files_sha256(files)}
    return datasets.Dataset.from_generator(_typed_rows, features=features, gen_kwargs=options, split="train")


def json_rows(files: Sequence[str], columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the objects of files, all with the given columns if there are any."""
    for file in files:
        try:
            with _open(file) as content:
                for number, row in enumerate(_values(io.TextIOWrapper(content, encoding="utf-8-sig")), start=1):
                    if not isinstance(row, dict):
                        raise ValueError(f"row {number} is no object")
                    for value in row.values():
                        if isinstance(value, str):
                            value.encode()  # refuses half of a surrogate pair, which JSON may have and no tokenizer
                    yield {name: row.get(name) for name in columns} if columns else row
        except (ValueError, RecursionError, *UNREADABLE) as error:
            raise_bad_utf8(Path(file))
            raise UserError(f"{file} could not be read ({one_line(error)})") from error


def _open(file: str) -> BinaryIO:
    if not os.path.isfile(file):
        return cast(BinaryIO, fsspec.open(file, compression="infer").open())
    with open_file(Path(file)) as beginning:
        refuse_utf16(Path(file), beginning.read(4096))
    return open_file(Path(file))


def _values(text: io.TextIOWrapper) -> Iterator[Any]:
    start = text.readline()
    while start.isspace():
        start = text.readline()
    try:
        values = json.loads(start) if start else []
    except ValueError:  # not a value in a line
        values = json.loads(start + text.read())
    following = (json.loads(line) for line in text if line.strip())
    if values and isinstance(values, dict) and all(isinstance(column, list) for column in values.values()):
        second = list(islice(following, 1))
        if second:  # the first of many rows of lists
            values = [values, *second]
        else:
            values = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    yield from values if isinstance(values, list) else [values]
    yield from following


def _kinds(files: Sequence[str]) -> dict[str, str]:
    """Return the type of each column."""
    found: dict[str, set[str]] = {}
    for row in json_rows(files):
        for name, value in row.items():
            kinds = found.setdefault(name, set())
            if value is not None:
                kinds.add("large" if isinstance(value, int) and abs(value) >= 2**63 else type(value).__name__)
    return {name: KINDS.get(" ".join(sorted(kinds)), OTHER) for name, kinds in found.items()}


def _typed_rows(files: Sequence[str], columns: Sequence[tuple[str, str]], content: str) -> Iterator[dict[str, Any]]:
    """Yield rows for `datasets`, which knows them by `content`, the checksum of the files."""
    others = [name for name, kind in columns if kind == OTHER]
    for row in json_rows(files, [name for name, _ in columns]):
        yield row | {name: json.dumps(row[name]).encode() for name in others if row[name] is not None}
