"""Vectors of sentences: whoever makes them, each sentence once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import UserError

Encode = Callable[[list[str]], np.ndarray]


@dataclass
class CountingEncoder:
    """A function from texts to vectors that can say how much it reads.

    Args:
        encode: texts to vectors, `list[str] -> (n, d)`.
        count_tokens: texts to the number of tokens that the model reads of them, padding left out.
    """

    encode: Encode
    count_tokens: Callable[[list[str]], int]

    def __call__(self, texts: list[str]) -> np.ndarray:
        return self.encode(texts)


class Encoded:
    """The vectors of the sentences that were added, float32; looks them up, `list[str] -> (n, d)`."""

    def __init__(self, encode: Encode):
        self.encode = encode
        self.rows: dict[str, np.ndarray] = {}

    def add(self, sentences: set[str]) -> None:
        """Encode those that are not there yet, in one call."""
        new = sorted(sentences - self.rows.keys())
        if new:
            self.rows |= zip(new, checked(np.asarray(self.encode(new), dtype=np.float32), new), strict=True)

    def __call__(self, texts: list[str]) -> np.ndarray:
        return np.stack([self.rows[text] for text in texts])


def checked(vectors: np.ndarray, sentences: list[str]) -> np.ndarray:
    """What an encoder gave, if there is a finite vector for every sentence."""
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise UserError(f"encode gave an array of shape {vectors.shape} for {len(sentences)} sentences")
    if not np.isfinite(vectors).all():
        bad = sentences[int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])]
        raise UserError(f"encode gave a vector that is not finite for {bad[:80]!r}")
    return vectors
