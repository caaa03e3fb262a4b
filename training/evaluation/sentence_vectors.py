"""Vectors of sentences: encode each sentence once, then look its vector up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..errors import UserError, one_line
from .tasks.sts import unit_vectors

Encode = Callable[[list[str]], np.ndarray]


@dataclass
class CountingEncoder:
    """An encoder that can also count the tokens it reads, and encode queries and documents with their prompts."""

    encode: Encode  # texts to vectors, `list[str] -> (n, d)`
    count_tokens: Callable[[list[str]], int]  # texts to the number of tokens the model reads, without padding
    roles: Mapping[str, Encode] = field(default_factory=dict)  # `query`, `document`, with their prompts
    similarity: str = "cosine"  # by which the model is served

    def __call__(self, texts: list[str]) -> np.ndarray:
        return self.encode(texts)


def as_role(encode: Encode, role: str) -> Encode:
    """Return how an encoder encodes texts in a role, `query` or `document`. Other functions know no roles."""
    return encode.roles.get(role, encode) if isinstance(encode, CountingEncoder) else encode


def similarity_of(encode: Encode) -> str:
    """Return by which similarity an encoder is served; cosine if it does not say."""
    return encode.similarity if isinstance(encode, CountingEncoder) else "cosine"


class SentenceVectors:
    """The float32 vectors of the sentences added so far. Call it to look them up, `list[str] -> (n, d)`."""

    def __init__(self, encode: Encode):
        self.encode = encode
        self.rows: dict[str, np.ndarray] = {}

    def add(self, sentences: set[str]) -> None:
        """Encode the sentences that have no vector yet, in one call."""
        if new := sorted(sentences - self.rows.keys()):
            self.rows |= zip(new, vectors_of(self.encode, new), strict=True)

    def __call__(self, texts: list[str]) -> np.ndarray:
        return np.stack([self.rows[text] for text in texts])


def vectors_of(encode: Encode, sentences: list[str]) -> np.ndarray:
    """Return the float32 vectors `(n, d)` of sentences."""
    try:
        encoded = encode(sentences)
    except ValueError as error:
        raise UserError(f"encode: {one_line(error)}") from error
    vectors = np.asarray(encoded, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise UserError(
            f"encode returned shape {vectors.shape} for {len(sentences)} sentences; it must return one vector per text"
        )
    if not np.isfinite(vectors).all():
        bad = sentences[int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])]
        raise UserError(f"encode returned a vector that is not finite for {bad[:80]!r}; check the model's weights")
    return vectors


def shortened(vectors: np.ndarray, truncate_dim: int | None, normalize: bool) -> np.ndarray:
    """Return the first dimensions of vectors `(n, d)`, all by default, and scale them to length one if wanted.

    Raises:
        ValueError: the vectors have fewer dimensions.

    Example:
        >>> shortened(np.array([[3.0, 4.0, 9.0]]), 2, True)
        array([[0.6, 0.8]], dtype=float32)
    """
    if truncate_dim is not None and truncate_dim > (most := vectors.shape[1]):
        raise ValueError(f"truncate_dim: {truncate_dim} must be at most {most}, the dimensions of the model")
    vectors = vectors[:, :truncate_dim]
    return unit_vectors(vectors).astype(np.float32) if normalize else vectors
