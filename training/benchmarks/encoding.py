"""Benchmark of encoding: `encode` against `SentenceTransformer.encode`, with the same weights and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..data.texts import stream_texts
from ..errors import UserError
from ..evaluation.encoders import load_encoder
from ..evaluation.sentence_vectors import Encode
from ..quickstart.world import make_world
from .race import machine, race

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer  # an optional dependency

BATCH = 32  # the default batch size of both
TOLERANCE = 1e-4  # relative to the largest number in the vectors


def benchmark_encoding(
    model: str, pooling: str | None, file: str | None = None, *, repeats: int = 5
) -> dict[str, object]:
    """Time encoding of all texts of a file, and of those of about one length, in float32 with batches of 32.

    Args:
        model, pooling: as for `load_encoder`. A plain encoder needs a pooling that sentence-transformers has too:
            `cls`, `mean` or `max`.
        file: a file as for `stream_texts`; 2,000 sentences of the quickstart's world by default.
        repeats: how often each side is timed.

    Returns:
        `sets`: for `mixed` and for `one length`, the figures of `race`, the number of texts and tokens, and the
        largest `difference` of two numbers in the vectors; the receipt of the encoder; the machine.

    Raises:
        UserError: the model or the file cannot be read, or the two sides return different vectors.
    """
    encode, receipt = load_encoder(model, pooling=pooling, batch_size=BATCH)
    if receipt["kind"] == "sentence-transformers":
        raise UserError(
            f"{model} is a sentence-transformers model, so both sides would be the same; give a model of the zoo or a "
            "plain encoder"
        )
    usual = as_sentence_transformer(model, pooling)
    texts = list(stream_texts(file)) if file else make_world(sentences=2000, pairs=0, triplets=0).train
    lengths = np.array([encode.count_tokens([text]) for text in texts])
    near = np.abs(lengths - np.median(lengths)) <= 0.1 * np.median(lengths)
    for warm in (encode, usual):
        warm(texts[:BATCH])  # the first forward pass of a process is the slowest
    sets = {"mixed": np.arange(len(texts)), "one length": np.flatnonzero(near)}
    return {
        "benchmark": "encode",
        "batch_size": BATCH,
        "sets": {
            name: {
                "texts": len(rows),
                "tokens": int(lengths[rows].sum()),
                **race_encoders(encode, usual, [texts[row] for row in rows], repeats),
            }
            for name, rows in sets.items()
        },
        **receipt,
        "machine": machine(),
    }


def race_encoders(encode: Encode, usual: Encode, texts: list[str], repeats: int) -> dict[str, object]:
    """Return the figures of `race` for two encoders, and the largest `difference` of their vectors.

    Raises:
        UserError: the vectors differ, so that the times cannot be compared.
    """
    vectors: dict[str, np.ndarray] = {}
    figures = race(
        lambda: vectors.update(ours=encode(texts)), lambda: vectors.update(usual=usual(texts)), repeats=repeats
    )
    difference = float(np.abs(vectors["ours"] - vectors["usual"]).max())
    if difference > TOLERANCE * np.abs(vectors["usual"]).max():
        raise UserError(
            f"the vectors of sentence-transformers differ by {difference:.1e}, so the times cannot be compared"
        )
    return {**figures, "difference": difference}


def as_sentence_transformer(model: str, pooling: str | None) -> Encode:
    """Return `SentenceTransformer.encode` with the same weights and the same pooling."""
    encoder = sentence_transformer(model, pooling)
    return lambda texts: encoder.encode(texts, batch_size=BATCH, show_progress_bar=False)


def sentence_transformer(model: str, pooling: str | None, max_length: int | None = None) -> SentenceTransformer:
    """Load a model in sentence-transformers, in float32.

    Args:
        model: a model of the zoo, or a plain encoder.
        pooling: pooling of a plain encoder: `cls`, `mean` or `max`.
        max_length: longest text of a plain encoder in word pieces; the limit of the encoder by default.

    Raises:
        UserError: sentence-transformers does not have the pooling, or is not installed.
    """
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError:
        raise UserError("this benchmark needs sentence-transformers: pip install sentence-transformers") from None
    if pooling not in (None, "cls", "mean", "max"):
        raise UserError(f"pooling: sentence-transformers has no {pooling}; give cls, mean or max")
    options = {"dtype": "float32", "use_safetensors": True}
    if pooling is None:
        return SentenceTransformer(model, model_kwargs=options)
    encoder = Transformer(model, model_kwargs=options, max_seq_length=max_length)
    return SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), pooling)])
