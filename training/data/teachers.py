"""The teachers' vectors of the training sentences, for rank distillation."""

from __future__ import annotations

import glob
from pathlib import Path

import datasets
import torch
from torch.nn import functional as F

from csezoo.modeling.serving.encoding_csezoo import EncodesTexts

from ..errors import UserError, library_errors
from ..hub import files_sha256


class BaseTeacher:
    """The base model as it is served: it encodes the training sentences of a batch when they are needed.

    That takes a forward pass for each sentence, a quarter of the time of an update of SimCSE.
    """

    def __init__(self, encoder: EncodesTexts, sentences: list[str]):
        self.encoder, self.sentences = encoder, sentences

    def __getitem__(self, rows: list[int]) -> torch.Tensor:
        """Return one vector for each of the sentences, `(n, K)`."""
        vectors = self.encoder.encode([self.sentences[row] for row in rows], convert_to_tensor=True)
        return vectors.float().cpu().clone()  # a loss cannot keep a tensor of inference mode


class Teachers:
    """The vectors of one or two teachers, read from disk batch by batch.

    Args:
        directories: as `csezoo encode` writes them, in Parquet.
        sentences: the training sentences, in the order of their row numbers.
        share: of the first of two teachers in the similarity.
    """

    def __init__(self, directories: list[str], sentences: list[str], share: float):
        self.vectors = [_vectors_of(directory, sentences) for directory in directories]
        self.shares = [share, 1 - share] if len(directories) == 2 else [1.0]

    def __getitem__(self, rows: list[int]) -> torch.Tensor:
        """Return one vector for each of the sentences, `(n, K)`.

        The cosine of two of them is the mean of the teachers' cosines, weighted by their shares.
        """
        units = [F.normalize(torch.as_tensor(vectors[rows]["embedding"]).float(), dim=1) for vectors in self.vectors]
        return torch.cat([share**0.5 * unit for share, unit in zip(self.shares, units, strict=True)], dim=1)


def shards_of(directory: str) -> list[str]:
    """Return the files with a teacher's vectors, or refuse a directory that has none."""
    shards = sorted(map(str, Path(directory).glob("*.parquet")))
    if not shards:
        raise UserError(
            f"teachers: {directory} has no Parquet files; write them with `csezoo encode MODEL FILE --to {directory}`"
        )
    return shards


def _vectors_of(directory: str, sentences: list[str]) -> datasets.Dataset:
    shards = shards_of(directory)
    files = [glob.escape(shard) for shard in shards]  # `datasets` reads patterns
    content = files_sha256(shards)  # otherwise `datasets` would know the files by their paths and times alone
    wrong = f"teachers: {directory} was not written by `csezoo encode`; write it again"
    with library_errors(wrong):
        encoded = datasets.load_dataset("parquet", content, data_files=files, split="train")
    embedding = encoded.features.get("embedding")
    sound = isinstance(embedding, datasets.List | datasets.Sequence) and isinstance(embedding.feature, datasets.Value)
    if "text" not in encoded.features or not sound:
        raise UserError(wrong)
    rows = {text: row for row, text in enumerate(encoded["text"])}
    dimensions, precision = embedding.length, embedding.feature.dtype
    if precision != "float32":
        raise UserError(f"teachers: {directory} has quantised vectors ({precision}); encode the texts to float32")
    if missing := next((text for text in sentences if text not in rows), None):
        raise UserError(
            f"teachers: {directory} has no vector of the training sentence {missing[:60]!r}; encode the training file"
        )
    if dimensions < 1:
        raise UserError(f"teachers: {directory} has vectors of different lengths; encode the training file again")
    vectors = encoded.select_columns(["embedding"]).with_format("numpy")
    return vectors.select([rows[text] for text in sentences])
