"""Benchmark of short vectors: what truncated and quantised embeddings keep of the quality of the complete ones."""

from __future__ import annotations

import sys
from statistics import mean

import numpy as np
import torch
from tqdm.auto import tqdm

from csezoo.modeling.serving.quantization_csezoo import quantize_embeddings

from ..evaluation.encoders import load_encoder
from ..evaluation.sentence_vectors import Encode, SentenceVectors
from ..evaluation.suites import LOADERS, Task, encode_once, score
from ..evaluation.tasks.sts import unit_vectors

BITS = {"float32": 32, "int8": 8, "binary": 1}  # of a dimension


def benchmark_short_vectors(
    models: list[tuple[str, str]], data: str, *, dims: list[int], pooling: str | None = None
) -> dict[str, object]:
    """Score the vectors of models at several lengths and precisions, on the suites sts and retrieval.

    A model encodes each sentence once. Its vectors are truncated, scaled to length one and quantised, in this order.
    The ranges of `int8` are those of the vectors of all sentences. `float32` and `int8` are compared by cosine,
    `binary` by the number of equal bits.

    Returns:
        `points`, for each label, length and precision: bytes of a vector, and for each model the mean Spearman over
        the STS tasks and recall@10, both × 100; the receipts of the models.
    """
    tasks: list[Task] = [*LOADERS["sts"](data), *LOADERS["retrieval"](data)]
    points: dict[tuple[str, int, str], dict] = {}
    receipts = []
    for label, model in tqdm(models, desc="Models", disable=not sys.stderr.isatty()):
        encode, receipt = load_encoder(model, pooling=pooling)
        receipts.append({"label": label, "model": model, **receipt})
        for point in score_short_vectors(encode, tasks, dims):
            key = (label, point["dimensions"], point["precision"])
            if key in points:
                points[key]["spearman"] += point["spearman"]
                points[key]["recall@10"] += point["recall@10"]
            else:
                points[key] = {"label": label, **point}
    return {"points": list(points.values()), "models": receipts}


def score_short_vectors(encode: Encode, tasks: list[Task], dims: list[int]) -> list[dict]:
    """Return a point for each length and precision, the complete vectors first; arguments as above."""
    complete = encode_once(encode, tasks)
    width = len(next(iter(complete.rows.values())))
    points = []
    for dim in (width, *sorted({dim for dim in dims if dim < width}, reverse=True)):
        for precision, bits in BITS.items():
            results = score(tasks, shortened(complete, dim, precision), None)
            values = {
                name: [row["value"] for row in results if row["metric"] == name] for name in ("spearman", "recall@10")
            }
            values["spearman"] = [mean(values["spearman"])]
            points.append({"dimensions": dim, "precision": precision, "bytes": -(-dim * bits // 8), **values})
    return points


def shortened(vectors: SentenceVectors, dim: int, precision: str) -> SentenceVectors:
    """Return truncated and quantised vectors as numbers whose cosines rank them as that precision does.

    A bit becomes 1 or -1, so that a cosine is 1 - 2 d / n for d different bits of n.

    Example:
        >>> vectors = SentenceVectors(lambda texts: np.array([[0.5, -2.0, 1.0], [1.0, 1.0, 1.0]]))
        >>> vectors.add({"a", "b"})
        >>> shortened(vectors, 2, "binary")(["a", "b"])
        array([[ 1., -1.],
               [ 1.,  1.]], dtype=float32)
    """
    units = unit_vectors(np.stack(list(vectors.rows.values()))[:, :dim]).astype(np.float32)
    if precision == "binary":
        bits = quantize_embeddings(torch.from_numpy(units), "ubinary").numpy()
        short = 2 * np.unpackbits(bits, axis=1, count=dim).astype(np.float32) - 1
    else:
        short = quantize_embeddings(torch.from_numpy(units), precision).numpy().astype(np.float32)
    result = SentenceVectors(vectors.encode)
    result.rows = dict(zip(vectors.rows, short, strict=True))
    return result
