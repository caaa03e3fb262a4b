"""Shards: files of embeddings in Parquet or safetensors, each with its receipt in the metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from ..errors import UserError, writing
from ..files import replace_file

KEY = "csezoo"  # key of the receipt in the metadata
CHECKSUM = "vectors_sha256"  # key of the receipt, for `is_damaged`
# What the embeddings depend on. Shards of another size would skip rows or repeat them.
DECISIVE: tuple[str, ...] = ("model_sha256", "pooling", "dtype", "normalize", "text_sha256", "shard_size", "format")
DECISIVE += ("truncate_dim", "precision")  # only in the receipts of embeddings that were cut or quantised


def shard_names(count: int, file_format: str) -> list[str]:
    """Return the file names of all shards in the order of their rows. The names sort, and show whether one is missing.

    Example:
        >>> shard_names(3, "parquet")
        ['part-00000-of-00003.parquet', 'part-00001-of-00003.parquet', 'part-00002-of-00003.parquet']
    """
    width = max(5, len(str(count)))
    return [f"part-{number:0{width}}-of-{count:0{width}}.{file_format}" for number in range(count)]


def parquet(first_row: int, texts: list[str], embeddings: np.ndarray, receipt: str) -> bytes:
    """Return a Parquet file with the columns `row` (from 0), `text`, `embedding`, a `fixed_size_list` of H numbers."""
    rows = pa.array(range(first_row, first_row + len(texts)), pa.int64())
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1])
    columns = {"row": rows, "text": pa.array(texts, pa.string()), "embedding": vectors}
    file = pa.BufferOutputStream()
    # The numbers hardly repeat: neither a dictionary nor compression makes them smaller.
    table = pa.table(columns).replace_schema_metadata({KEY: receipt})
    pq.write_table(table, file, use_dictionary=False, compression={**dict.fromkeys(columns, "none"), "text": "zstd"})
    return file.getvalue().to_pybytes()


def safetensors(first_row: int, texts: list[str], embeddings: np.ndarray, receipt: str) -> bytes:
    """Return a safetensors file with `row` (from 0, int64) and `embedding` `(rows, H)`, but no texts."""
    rows = np.arange(first_row, first_row + len(texts))
    return save({"row": rows, "embedding": np.ascontiguousarray(embeddings)}, {KEY: receipt})


FORMATS: dict[str, Callable[[int, list[str], np.ndarray, str], bytes]] = {
    "parquet": parquet,
    "safetensors": safetensors,
}


def write_shard(path: Path, first_row: int, texts: list[str], embeddings: np.ndarray, receipt: dict) -> None:
    """Write a complete shard or nothing. An unfinished shard is a hidden file, which readers skip."""
    receipt = {**receipt, CHECKSUM: vectors_sha256(embeddings)}
    content = FORMATS[path.suffix[1:]](first_row, texts, embeddings, json.dumps(receipt))
    with writing("to", path, "; free disk space, or give another --to"):
        replace_file(path, content)
        for left in path.parent.glob(f".{path.name}.*.partial"):  # left by a killed process
            left.unlink(missing_ok=True)


def finished_shards(directory: Path, receipt: dict, names: list[str]) -> set[str]:
    """Return the names of the shards that a directory already contains. A damaged one of `names` may be among them."""
    paths = [path for path in directory.glob("*") if path.suffix[1:] in FORMATS and not path.name.startswith(".")]
    finished = set()
    for path in sorted(paths):
        try:
            existing = read_receipt(path)
        except UserError as error:
            if path.name in names and isinstance(error.__cause__, ArrowException | SafetensorError):
                continue  # a damaged one, which is written again
            raise
        if differing := [key for key in DECISIVE if existing.get(key) != receipt.get(key)]:
            name, value = differing[0].removesuffix("_sha256"), existing.get(differing[0])
            raise UserError(
                f"to: {directory} contains embeddings made with another {name} ({value}); choose another --to"
            )
        finished.add(path.name)
    return finished


def vectors_sha256(embeddings: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(embeddings).data).hexdigest()


def is_damaged(path: Path) -> bool:
    """Return whether the vectors in a shard are not those that were written."""
    try:
        if path.suffix == ".parquet":
            column = pq.read_table(path, columns=["embedding"]).column(0).combine_chunks()
            vectors = column.flatten().to_numpy(zero_copy_only=False)
        else:
            vectors = load_file(path)["embedding"]
    except (OSError, KeyError, ValueError, ArrowException, SafetensorError):
        return True
    return read_receipt(path).get(CHECKSUM) != vectors_sha256(vectors)


def read_receipt(path: Path) -> dict:
    """Return the receipt of a shard: what its embeddings depend on."""
    try:
        if path.suffix == ".parquet":
            metadata = {key.decode(): value for key, value in (pq.read_schema(path).metadata or {}).items()}
        else:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
        return json.loads(metadata[KEY])
    except (OSError, KeyError, ValueError, ArrowException, SafetensorError) as error:
        raise UserError(f"to: {path} was not written by `csezoo encode`; choose another --to") from error
