"""Encoders without a network: the mean of word vectors from a file, and bags of words."""

from __future__ import annotations

import gzip
import hashlib
import platform
import re
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..errors import UserError, one_line
from ..files import UNREADABLE
from .sentence_vectors import CountingEncoder, Encode

BAG_OF_WORDS = "bag-of-words"
WORD = r"\w+|[^\w\s]"  # a word, or a mark
# Of a bag of words. In 1 of 80 pairs of texts of ten words, a word of one text shares a dimension with a different
# word of the other.
DIMENSIONS = 2**13


def split_words(text: str) -> list[str]:
    """Split a text into words and marks.

    Example:
        >>> split_words("It's a cat.")
        ['It', "'", 's', 'a', 'cat', '.']
    """
    return re.findall(WORD, text)


def load_word_vectors(path: str) -> tuple[CountingEncoder, dict[str, Any]]:
    """Load a file of word vectors as an encoder: the vector of a text is the mean over its words, mean_w v_w.

    A word is looked up as it is, then in lower case. Words without a vector do not count; a text without any word that
    has one gets the zero vector.

    Args:
        path: a text file with a word and its numbers on each line, as GloVe, word2vec and fastText write them, with or
            without a first line of two numbers (words, dimensions); also as `.gz`.

    References:
        Pennington et al. 2014, "GloVe: Global Vectors for Word Representation".
    """
    try:
        vectors, digest = _read(Path(path))
    except UNREADABLE as error:  # such as a download that was cut off
        raise UserError(f"{path} cannot be read ({one_line(error)})") from error
    size = len(next(iter(vectors.values())))

    def mean(text: str) -> np.ndarray:
        found = [vectors.get(word, vectors.get(word.lower())) for word in split_words(text)]
        known = [vector for vector in found if vector is not None]
        return np.mean(known, axis=0) if known else np.zeros(size, np.float32)

    def encode(texts: list[str]) -> np.ndarray:
        return np.stack([mean(text) for text in texts]) if texts else np.zeros((0, size))

    return _with_receipt(encode, "word-vectors", "mean", digest)


def load_bag_of_words() -> tuple[CountingEncoder, dict[str, Any]]:
    """Return the bag of words of a text as an encoder: 1 for each word that is in the text, in lower case.

    The cosine of two bags A and B is |A ∩ B| / √(|A| |B|). Words are hashed to 8,192 dimensions, so that all vectors
    have the same length; two words may share a dimension.

    References:
        Cer et al. 2017, "SemEval-2017 Task 1", section 7: the baseline of the task.

    Example:
        >>> encode, _ = load_bag_of_words()
        >>> a, b = encode(["A cat sits.", "a dog sits"])
        >>> float(a @ b), float(a @ a)
        (2.0, 4.0)
    """
    from sklearn.feature_extraction.text import HashingVectorizer  # a second of processor time

    words = HashingVectorizer(
        n_features=DIMENSIONS, binary=True, norm=None, alternate_sign=False, token_pattern=WORD, dtype=np.float32
    )

    def encode(texts: list[str]) -> np.ndarray:
        return words.transform(texts).toarray()

    return _with_receipt(encode, BAG_OF_WORDS, "binary", None)


def _with_receipt(
    encode: Encode, kind: str, pooling: str, digest: str | None
) -> tuple[CountingEncoder, dict[str, Any]]:
    receipt = {"pooling": pooling, "dtype": "float32", "batch_size": None, "kind": kind, "device": platform.machine()}
    receipt |= {"model_sha256": digest, "model_revision": None}
    return CountingEncoder(encode, lambda texts: sum(len(split_words(text)) for text in texts)), receipt


def _read(path: Path) -> tuple[dict[str, np.ndarray], str]:
    vectors: dict[str, np.ndarray] = {}
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as raw, tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name) as bar:
        lines = gzip.open(raw) if path.suffix == ".gz" else raw
        for number, line in enumerate(lines, start=1):
            digest.update(line)
            if number % 10_000 == 0:
                bar.update(raw.tell() - bar.n)
            cells = line.removeprefix(BOM_UTF8).rstrip().split(b" ")
            if cells == [b""]:
                continue
            if number == 1 and len(cells) == 2 and cells[0].isdigit() and cells[1].isdigit():
                size = int(cells[1])  # after the number of words
                continue
            size = size or len(cells) - 1
            try:  # a word may contain spaces, its numbers are the last ones
                vector = np.array(cells[-size:], np.float32) if len(cells) > size > 0 else None
            except ValueError:
                vector = None
            if vector is None:
                raise UserError(
                    f"{path}, line {number}: expected a word and {size or 'its'} numbers, as GloVe has them"
                )
            vectors.setdefault(b" ".join(cells[:-size]).decode("utf-8", errors="replace"), vector)
    if not vectors:
        raise UserError(f"{path} has no word vectors; each line must have a word and its numbers")
    return vectors, digest.hexdigest()
