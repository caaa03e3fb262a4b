"""Embeddings on disk: files of so many rows each, Parquet or safetensors, that say what they are made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import UserError, one_line
from ..files import replace_file

KEY = "csezoo"  # of the origin in a file's metadata


def shard_names(rows: int, shard_size: int, file_format: str) -> list[str]:
    """The files of a directory, in the order of their rows: their names sort, and tell if one is missing.

    Example:
        >>> shard_names(25, 10, "parquet")
        ['part-00000-of-00003.parquet', 'part-00001-of-00003.parquet', 'part-00002-of-00003.parquet']
    """
    count = -(-rows // shard_size)
    return [f"part-{number:05d}-of-{count:05d}.{file_format}" for number in range(count)]


def parquet(first_row: int, texts: list[str], embeddings: np.ndarray, origin: str) -> bytes:
    """A table of `row` (from 0), `text` and `embedding` (`fixed_size_list<float32>[H]`)."""
    rows = pa.array(range(first_row, first_row + len(texts)), pa.int64())
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1])
    columns = {"row": rows, "text": pa.array(texts, pa.string()), "embedding": vectors}
    file = pa.BufferOutputStream()
    # Numbers that hardly repeat: neither a dictionary nor compression makes them smaller.
    table = pa.table(columns).replace_schema_metadata({KEY: origin})
    pq.write_table(table, file, use_dictionary=False, compression={**dict.fromkeys(columns, "none"), "text": "zstd"})
    return file.getvalue().to_pybytes()


def safetensors(first_row: int, texts: list[str], embeddings: np.ndarray, origin: str) -> bytes:
    """The tensors `row` (from 0, int64) and `embedding` `(rows, H)`, float32; it holds no text."""
    rows = np.arange(first_row, first_row + len(texts))
    return save({"row": rows, "embedding": np.ascontiguousarray(embeddings)}, {KEY: origin})


FORMATS: dict[str, Callable[[int, list[str], np.ndarray, str], bytes]] = {
    "parquet": parquet,
    "safetensors": safetensors,
}


def write_shard(path: Path, first_row: int, texts: list[str], embeddings: np.ndarray, origin: dict) -> None:
    """Write a file whole or not at all: no reader takes note of a hidden one that is not finished.

    Args:
        path: its suffix says the format.
        origin: what its embeddings depend on, kept in its metadata.

    Raises:
        UserError: it cannot be written.
    """
    content = FORMATS[path.suffix[1:]](first_row, texts, embeddings, json.dumps(origin))
    try:
        replace_file(path, content)
        for left in path.parent.glob(f".{path.name}.*.partial"):  # by a process that was killed
            left.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"to: {path} cannot be written ({one_line(error)})") from error


def finished_shards(directory: Path, origin: dict, decisive: tuple[str, ...]) -> set[str]:
    """The names of the files that are there and need not be made again.

    Args:
        decisive: keys of `origin` in which all must agree.

    Raises:
        UserError: a file is none of these, or was made from something else.
    """
    found = [path for path in directory.glob("*") if path.suffix[1:] in FORMATS and not path.name.startswith(".")]
    for path in sorted(found):
        made_from = read_origin(path)
        if other := [key for key in decisive if made_from.get(key) != origin[key]]:
            name, before = other[0].removesuffix("_sha256"), made_from.get(other[0])
            raise UserError(f"to: {directory} holds embeddings of another {name} ({before}), give another --to")
    return {path.name for path in found}


def read_origin(path: Path) -> dict:
    """What a file's embeddings are made from."""
    try:
        if path.suffix == ".parquet":
            metadata = {key.decode(): value for key, value in (pq.read_schema(path).metadata or {}).items()}
        else:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
        return json.loads(metadata[KEY])
    except (OSError, KeyError, ValueError, ArrowException, SafetensorError) as error:
        raise UserError(f"to: {path} is no file of embeddings of `csezoo encode`, give another --to") from error
