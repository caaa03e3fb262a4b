"""Local files of texts: their kind, what is wrong with them, and JSON as Python reads it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import datasets
import pyarrow

from ..errors import UserError, one_line
from ..files import UNREADABLE
from ..hub import sha256

DEEPEST = 100  # lists and objects in each other in a JSON file
# The types of JSON values in a column, and the type of the column.
KINDS = {"": "string", "str": "string", "int": "int64", "float": "float64", "floatint": "float64", "bool": "bool"}


def suffix_of(file: str) -> str:
    return Path(file.lower().removesuffix(".gz")).suffix


def open_file(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def raise_bad_utf8(path: Path) -> None:
    """Raise an error that names the first line that is not UTF-8, if there is one."""
    if suffix_of(path.name) == ".parquet":
        return
    with suppress(*UNREADABLE), open_file(path) as lines:  # a damaged archive is reported by the caller
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}); convert the file"
                ) from None


def refuse_null(path: Path) -> None:
    """Refuse a file whose first row is null: pyarrow 26 would crash the process."""
    with suppress(*UNREADABLE), open_file(path) as file:
        if re.match(rb"(\xef\xbb\xbf)?\s*(\[\s*)?null", file.read(1 << 16)):
            raise UserError(f"{path}: the first row is null, not an object with text; delete that row")


def refuse_deep(path: Path) -> None:
    """Refuse a line with lists and objects deep in each other: pyarrow 26 would crash the process."""
    with suppress(*UNREADABLE), open_file(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.count(b"[") + line.count(b"{") <= DEEPEST:
                continue
            depth = 0
            for mark in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', line):
                depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(mark[0], 0)
                if depth > DEEPEST:
                    raise UserError(f"{path}, line {number}: more than {DEEPEST} lists in each other, not text")


def is_saved(directory: str) -> bool:
    """Return whether `save_to_disk` of `datasets` wrote a directory."""
    return any(os.path.isfile(os.path.join(directory, name)) for name in ("state.json", "dataset_dict.json"))


def without_views(schema: pyarrow.Schema) -> pyarrow.Schema:
    views = pyarrow.types.is_string_view
    return pyarrow.schema(
        [field.with_type(pyarrow.large_string()) if views(field.type) else field for field in schema]
    )


def json_dataset(file: str, kinds: dict[str, str], *, streaming: bool) -> datasets.Dataset | datasets.IterableDataset:
    """Read JSON with Python: pyarrow takes texts for dates, and the type of a column from its first megabytes."""
    options: dict[str, Any] = {"file": file, "columns": tuple(kinds)}  # `datasets` would divide a list
    if streaming:
        return datasets.IterableDataset.from_generator(json_rows, gen_kwargs=options)
    features = datasets.Features({name: datasets.Value(kind) for name, kind in kinds.items()})
    options["content"] = sha256(Path(file))  # what `datasets` knows the rows by, beside the name
    return datasets.Dataset.from_generator(json_rows, features=features, gen_kwargs=options, split="train")


def json_rows(file: str, columns: tuple[str, ...] = (), content: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON Lines or of a JSON list, all with the given columns.

    Raises:
        UserError: a line is no JSON object.
    """
    try:
        with open_file(Path(file)) as lines:
            text = io.TextIOWrapper(lines, encoding="utf-8-sig")
            start = text.read(1)
            text.seek(0)
            values = json.load(text) if start == "[" else (json.loads(line) for line in text if line.strip())
            for number, value in enumerate(values, start=1):
                if not isinstance(value, dict):
                    raise ValueError(f"row {number} is no object")
                yield {name: value.get(name) for name in columns} if columns else value
    except (ValueError, RecursionError, *UNREADABLE) as error:
        raise_bad_utf8(Path(file))
        raise UserError(f"{file} could not be read ({one_line(error)})") from error


def json_kinds(file: str, *, first: bool) -> dict[str, str] | None:
    """Return the type of each column, if all are texts or numbers; `first` looks at the first row alone.

    Anything else is read by `datasets`, which also names what is wrong with it.
    """
    found: dict[str, set[str]] = {}
    with suppress(UserError):  # it is raised again, or `datasets` reads what Python does not
        for row in islice(json_rows(file), 1 if first else None):
            for name, value in row.items():
                found.setdefault(name, set()).update([] if value is None else [type(value).__name__])
        kinds = {name: KINDS.get("".join(sorted(types)), "") for name, types in found.items()}
        return kinds if first or all(kinds.values()) else None
    return None
