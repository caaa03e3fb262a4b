"""A sentence encoder as a transformer of scikit-learn, for pipelines and grid searches over texts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags

from csezoo.modeling.serving.encoding_csezoo import checked_texts

from ..evaluation.encoders import load_encoder
from ..evaluation.sentence_vectors import CountingEncoder, shortened, vectors_of


class SentenceEncoderTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embed texts in a scikit-learn pipeline.

    It learns nothing from the data. It has the name of a model, not its weights: pickles and clones are small, and
    transformers of a process that name the same model share its weights, until its files change.

    Args:
        model: directory or Hub id, as for `csezoo encode`. A pickle needs the model at the same place.
        pooling: of a plain transformers encoder; other models define theirs.
        batch_size: largest number of texts in a forward pass.
        normalize_embeddings: scale every vector to length one, after it was truncated.
        truncate_dim: keep this many dimensions, the first ones; all by default.

    Raises:
        UserError: the model cannot be loaded.
        TypeError, ValueError: `X` is one string or a table, an item is not a string, or `truncate_dim` is below 1 or
            above the dimensions of the model.

    Example:
        ```python
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        classifier = make_pipeline(SentenceEncoderTransformer("runs/quickstart/best"), LogisticRegression())
        classifier.fit(["The cook baked the bread.", "The squad lost the game."], ["food", "sport"])
        ```
    """

    def __init__(
        self,
        model: str,
        *,
        pooling: str | None = None,
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ):
        self.model = model
        self.pooling = pooling
        self.batch_size = batch_size
        self.normalize_embeddings = normalize_embeddings
        self.truncate_dim = truncate_dim

    def fit(self, X: Iterable[str], y: object = None) -> SentenceEncoderTransformer:
        """Check the texts and load the model; nothing is learned."""
        documents(X)
        self._encoder()
        return self

    def fit_transform(self, X: Iterable[str], y: object = None) -> np.ndarray:
        """Return the vectors of texts, which are read once: they may come from a generator."""
        return self.transform(X)

    def transform(self, X: Iterable[str]) -> np.ndarray:
        """Return the vectors of texts, `(n, d)` of float32."""
        return self._embed(documents(X))

    def _embed(self, texts: list[str]) -> np.ndarray:
        if not texts:
            raise ValueError("X: found no text; a minimum of 1 is required")
        if self.truncate_dim is not None and self.truncate_dim < 1:
            raise ValueError(f"truncate_dim: {self.truncate_dim} must be at least 1")
        return shortened(vectors_of(self._encoder(), texts), self.truncate_dim, self.normalize_embeddings)

    def _encoder(self) -> CountingEncoder:
        return _load(self.model, self.pooling, self.batch_size, _state(self.model))

    @property
    def _n_features_out(self) -> int:
        return self._embed([""]).shape[1]

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.input_tags.string = True
        tags.requires_fit = False
        return tags


@lru_cache(maxsize=4)
def _load(model: str, pooling: str | None, batch_size: int, state: object) -> CountingEncoder:
    """Load a model once for each state of its files."""
    return load_encoder(model, pooling=pooling, batch_size=batch_size)[0]


def _state(model: str) -> tuple[object, ...]:
    """Return what is different after the files of a local model were replaced; a model on the Hub has none."""
    files = [Path(model)] if os.path.isfile(model) else []
    if os.path.isdir(model):  # the modules of a sentence-transformers model are in folders of their own
        patterns = ("*.safetensors", "*.json", "*.txt", "*/*.safetensors", "*/*.json")
        files = sorted(file for pattern in patterns for file in Path(model).glob(pattern) if file.is_file())
    states = [(file, file.stat()) for file in files]
    return tuple((file, state.st_ino, state.st_mtime_ns, state.st_size) for file, state in states)


def documents(X: Any) -> list[str]:
    """Return texts as a list, whatever they came in: a list, an array, a column of a table.

    Raises:
        ValueError: it is one string.
        TypeError: it is a table, or an item is not a string.

    Example:
        >>> documents(np.array(["a cat", "a dog"]))
        ['a cat', 'a dog']
    """
    if isinstance(X, str):
        raise ValueError("X: expected texts, got one string; put it in a list")
    return [str(text) for text in checked_texts(X)]
