"""Embed a file: each window of rows becomes one shard, on any number of processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from csezoo.modeling.serving.quantization_csezoo import quantization_ranges, quantize_embeddings

from ..data.texts import stream_texts
from ..errors import UserError, as_user_error
from ..evaluation.sentence_vectors import Encode, shortened, vectors_of
from ..files import create_directory
from .shards import finished_shards, is_damaged, read_receipt, shard_names, write_shard


def embed_file(
    encode: Encode,
    receipt: dict[str, object],
    file: str,
    directory: Path,
    *,
    column: str | None = None,
    normalize: bool = False,
    truncate_dim: int | None = None,
    precision: str = "float32",
    file_format: str = "parquet",
    shard_size: int = 10_000,
    progress: bool = False,
) -> tuple[int, int]:
    """Embed the texts of a file and write the vectors, in the file's order, to shards in a directory.

    Each window of `shard_size` rows is sorted, encoded and written separately. Memory therefore does not grow with the
    file, and a shard does not depend on the process or the call that writes it. Processes started by
    `accelerate launch` share the work. Finished shards are kept, unless they are damaged.

    Args:
        directory: a new directory, or that of an interrupted call with the same arguments.
        precision: see `quantize_embeddings`. The ranges of `int8` and `uint8` are those of the first shard, and are in
            the receipt of every shard, so that queries can be quantised with them. A later call reads them there.

    Returns:
        The number of rows and the number of shards.
    """
    # All texts are read once, so that a bad row is found before any work.
    read = [(len(texts), checksum) for texts, checksum in checked_windows(stream_texts(file, column), shard_size)]
    if not read:
        raise UserError(f"{file} contains no texts; give a file with at least one text")
    lengths, checksums = zip(*read, strict=True)
    choices = {"normalize": normalize, "text_sha256": checksums[-1], "shard_size": shard_size, "format": file_format}
    choices |= {} if truncate_dim is None else {"truncate_dim": truncate_dim}
    choices |= {} if precision == "float32" else {"precision": precision}
    shard_receipt = {**receipt, **choices}
    create_directory(directory, "to")
    names = shard_names(len(read), file_format)
    finished = finished_shards(directory, shard_receipt, names)
    state = PartialState()
    # Shards are assigned by number. The missing ones change while other processes write.
    numbers = range(state.process_index, len(names), state.num_processes)
    sizes = {number: lengths[number] for number in numbers}
    own = {names[number] for number in numbers}
    finished -= {name for name in own & finished if is_damaged(directory / name)}
    missing = {number: size for number, size in sizes.items() if names[number] not in finished}
    done = sum(sizes.values()) - sum(missing.values())
    # Computed again, with another batch size for example, they would differ in the last digits.
    known = read_receipt(directory / min(finished)).get("ranges") if finished else None
    ranges = None
    if known is not None:
        ranges, shard_receipt["ranges"] = torch.tensor(known), known
    with tqdm(total=sum(sizes.values()), initial=done, desc="Texts", unit="", disable=not progress) as bar:
        windows_now = checked_windows(stream_texts(file, column), shard_size)
        for number, (window, checksum) in enumerate(zip_longest(windows_now, checksums)):
            if window is None or window[1] != checksum:
                raise UserError(f"{file} changed while it was embedded; start again, with another --to")
            texts = window[0]
            calibrates = number == 0 and bool(missing) and precision in ("int8", "uint8") and ranges is None
            if number not in missing and not calibrates:
                continue
            with as_user_error():
                embeddings = shortened(vectors_of(encode, texts), truncate_dim, normalize)
            if calibrates:
                try:
                    ranges = quantization_ranges(torch.from_numpy(embeddings))
                except ValueError as error:  # there is only one text
                    raise UserError(f"{error} (a shard has --shard_size texts)") from error
                shard_receipt["ranges"] = ranges.tolist()
            if number in missing:
                embeddings = quantize_embeddings(torch.from_numpy(embeddings), precision, ranges).numpy()
                write_shard(directory / names[number], number * shard_size, texts, embeddings, shard_receipt)
                bar.update(len(texts))
    return sum(lengths), len(names)


def checked_windows(texts: Iterable[str], size: int) -> Iterator[tuple[list[str], str]]:
    """Yield windows of consecutive texts, each with the checksum of all texts up to its end.

    Example:
        >>> [(_, one)], [(_, other)] = (list(checked_windows(texts, 2)) for texts in (["a", "b"], ["a\\nb"]))
        >>> one == other
        False
    """
    digest, left = hashlib.sha256(), iter(texts)
    while window := list(islice(left, size)):
        for encoded in map(str.encode, window):
            digest.update(b"%d " % len(encoded) + encoded)
        yield window, digest.hexdigest()
