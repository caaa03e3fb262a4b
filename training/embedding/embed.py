"""Embedding a file: window after window of it becomes a shard, on any number of processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from accelerate import PartialState
from tqdm.auto import tqdm

from ..data.texts import stream_texts
from ..errors import UserError, one_line
from ..evaluation.encoded import Encode, checked
from ..evaluation.tasks.sts import unit_vectors
from .shards import finished_shards, shard_names, write_shard

# What embeddings depend on. A shard of another size would leave rows out or hold them twice.
DECISIVE = ("model_sha256", "pooling", "dtype", "normalize", "text_sha256", "shard_size", "format")


def embed_file(
    encode: Encode,
    receipt: dict[str, object],
    file: str,
    directory: Path,
    *,
    column: str | None = None,
    normalize: bool = False,
    file_format: str = "parquet",
    shard_size: int = 10_000,
    progress: bool = False,
) -> tuple[int, int]:
    """Write the embeddings of a file's texts, in its order, to the shards of a directory.

    Processes that `accelerate launch` started share the work. Every window of `shard_size` rows is sorted, encoded and
    written by itself: memory does not grow with the file, and a shard is the same whichever process makes it, in
    whichever call. Those that are there are kept.

    Args:
        encode, receipt: as `load_encoder` gives them.
        file, column: as of `stream_texts`.
        directory: a new one, or one that the same call has begun.
        normalize: scale every vector to length one.
        file_format: a key of `shards.FORMATS`.
        shard_size: rows.
        progress: show a bar, of this process's rows.

    Returns:
        Rows of the file, and its shards.

    Raises:
        UserError: a row cannot be read, the directory holds something else, or a vector is not finite.
    """
    rows, text_sha256 = survey(stream_texts(file, column))
    if rows == 0:
        raise UserError(f"{file} holds no texts")
    choices = {"normalize": normalize, "text_sha256": text_sha256, "shard_size": shard_size, "format": file_format}
    origin = {**receipt, **choices}
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"to: {directory} cannot be made ({one_line(error)})") from error
    names = shard_names(rows, shard_size, file_format)
    finished = finished_shards(directory, origin, DECISIVE)
    state = PartialState()
    # By number, not by what is missing: that is no longer the same when the next process looks.
    numbers = range(state.process_index, len(names), state.num_processes)
    own = {number: min(shard_size, rows - number * shard_size) for number in numbers}
    missing = {number: size for number, size in own.items() if names[number] not in finished}
    there = sum(own.values()) - sum(missing.values())
    with tqdm(total=sum(own.values()), initial=there, desc="Texts", unit="", disable=not progress) as bar:
        for number, texts in enumerate(windows(stream_texts(file, column), shard_size)):
            if number in missing:
                embeddings = checked(np.asarray(encode(texts), dtype=np.float32), texts)
                if normalize:
                    embeddings = unit_vectors(embeddings).astype(np.float32)
                write_shard(directory / names[number], number * shard_size, texts, embeddings, origin)
                bar.update(len(texts))
    return rows, len(names)


def survey(texts: Iterable[str]) -> tuple[int, str]:
    """Read all texts once, so that a bad row is found before the work: their number and a checksum.

    Example:
        >>> survey(["a", "b"]) == survey(["a\\nb"])
        False
    """
    digest, rows = hashlib.sha256(), 0
    for text in texts:
        encoded = text.encode()
        digest.update(b"%d " % len(encoded) + encoded)
        rows += 1
    return rows, digest.hexdigest()


def windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Runs of `size` texts, the last one shorter.

    Example:
        >>> list(windows("abcde", 2))
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    texts = iter(texts)
    while window := list(islice(texts, size)):
        yield window
