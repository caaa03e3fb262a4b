"""Local files of texts: their kind, and the line that is not UTF-8."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow

from ..errors import UserError
from ..files import UNREADABLE


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


def is_saved(directory: str) -> bool:
    """Return whether `save_to_disk` of `datasets` wrote a directory."""
    return any(os.path.isfile(os.path.join(directory, name)) for name in ("state.json", "dataset_dict.json"))


def plain_strings(schema: pyarrow.Schema) -> pyarrow.Schema:
    views = pyarrow.types.is_string_view
    return pyarrow.schema(
        [field.with_type(pyarrow.large_string()) if views(field.type) else field for field in schema]
    )
