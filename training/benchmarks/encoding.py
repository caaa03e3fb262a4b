"""The benchmark of encoding: a model's own `encode` against `SentenceTransformer.encode`, same weights, same texts."""

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
    from sentence_transformers import SentenceTransformer  # which need not be installed

BATCH = 32  # the default of both
TOLERANCE = 1e-4  # of the largest number in the vectors


def benchmark_encoding(
    model: str, pooling: str | None, file: str | None = None, *, repeats: int = 5
) -> dict[str, object]:
    """Encode the texts of a file: all of them, and those of about one length; in float32, 32 a batch at most.

    Args:
        model, pooling: as of `load_encoder`; a plain encoder with one of `cls`, `mean` and `max`, that
            sentence-transformers knows too.
        file: as of `stream_texts`; 2,000 sentences of the quickstart's world unless given.
        repeats: turns.

    Returns:
        In `sets`, for `mixed` and `one length`, `race`'s figures with the number of texts and tokens, and the largest
        `difference` of two numbers in the vectors; the encoder's receipt; the machine.

    Raises:
        UserError: the model or the file cannot be read, or the two give different vectors.
    """
    encode, receipt = load_encoder(model, pooling=pooling, batch_size=BATCH)
    if receipt["kind"] == "sentence-transformers":
        raise UserError(
            f"{model} is encoded by sentence-transformers either way: give a model of the zoo or a plain one"
        )
    usual = as_sentence_transformer(model, pooling)
    texts = list(stream_texts(file)) if file else make_world(sentences=2000, pairs=0, triplets=0).train
    lengths = np.array([encode.count_tokens([text]) for text in texts])
    near = np.abs(lengths - np.median(lengths)) <= 0.1 * np.median(lengths)
    for warm in (encode, usual):
        warm(texts[:BATCH])  # the first pass of a process is slower than any other
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
    """`race`'s figures, and the `difference` of what both give.

    Raises:
        UserError: they give different vectors, so that their times say nothing.
    """
    made: dict[str, np.ndarray] = {}
    figures = race(lambda: made.update(ours=encode(texts)), lambda: made.update(usual=usual(texts)), repeats=repeats)
    difference = float(np.abs(made["ours"] - made["usual"]).max())
    if difference > TOLERANCE * np.abs(made["usual"]).max():
        raise UserError(f"sentence-transformers gives other vectors, off by {difference:.1e}: the times say nothing")
    return {**figures, "difference": difference}


def as_sentence_transformer(model: str, pooling: str | None) -> Encode:
    """`SentenceTransformer.encode` of the same weights under the same pooling."""
    encoder = sentence_transformer(model, pooling)
    return lambda texts: encoder.encode(texts, batch_size=BATCH, show_progress_bar=False)


def sentence_transformer(model: str, pooling: str | None, max_length: int | None = None) -> SentenceTransformer:
    """A model as sentence-transformers holds it, in float32.

    Args:
        model: of the zoo, or a plain encoder.
        pooling: for a plain encoder, that sentence-transformers knows too.
        max_length: word pieces of a text in a plain encoder; its own limit unless given.

    Raises:
        UserError: it has no such pooling, or is not installed.
    """
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError:
        raise UserError("this benchmark needs sentence-transformers: pip install sentence-transformers") from None
    if pooling not in (None, "cls", "mean", "max"):
        raise UserError(f"pooling: sentence-transformers has no {pooling}, give cls, mean or max")
    options = {"dtype": "float32", "use_safetensors": True}
    if pooling is None:
        return SentenceTransformer(model, model_kwargs=options)
    encoder = Transformer(model, model_kwargs=options, max_seq_length=max_length)
    return SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), pooling)])
