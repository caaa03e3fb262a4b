"""Benchmarks of encoding: against `SentenceTransformer.encode`, and the suite `sts` against SentEval's way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from csezoo.modeling.serving.encoding_csezoo import EncodesTexts

from ..data.texts import stream_texts
from ..environment import default_device
from ..errors import UserError, refuse_missing
from ..evaluation.encoders import checkpoint_tokenizer, load_checkpoint, load_encoder, plain_encoder
from ..evaluation.sentence_vectors import CountingEncoder, Encode
from ..evaluation.significance import spearman
from ..evaluation.suites import evaluate_tasks
from ..evaluation.tasks.names import DEV_TASK, SICKR_DEV_TASK, STS_TASKS, SUBSETS
from ..evaluation.tasks.senteval import find_senteval, read_subset
from ..evaluation.tasks.sts import PairTask, cosines, load_task
from ..quickstart.world import make_world
from .race import race

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer  # an optional dependency

BATCH = 32  # the default batch size of both
TOLERANCE = 1e-4  # relative to the largest number in the vectors
Row = tuple[str, str, float]  # two sentences and their gold score
SENTEVAL_BATCH = 128  # the batch size of SimCSE's evaluation script, and of those based on it
# What SentEval encodes beside the test pairs.
OTHER_SPLITS = {"STSBenchmark": ("STSBenchmark-train", DEV_TASK), "SICK-R": ("SICK-R-train", SICKR_DEV_TASK)}


def _load(model: str, pooling: str | None, batch_size: int) -> tuple[CountingEncoder, dict[str, object]]:
    encode, receipt = load_encoder(model, pooling=pooling, batch_size=batch_size)
    if receipt["kind"] == "sentence-transformers":
        raise UserError(
            f"{model} is a sentence-transformers model, so both sides would be the same; give a model of the zoo or a "
            "plain encoder"
        )
    return encode, receipt


def benchmark_encoding(
    model: str, pooling: str | None, texts: str | None = None, *, repeats: int = 5
) -> dict[str, object]:
    """Time encoding of all sentences of a file, and of those of about one length, in float32 with batches of 32.

    Returns:
        `sets`: for `mixed` and for `one length`, the figures of `race`, the number of texts and tokens, and the
        largest `difference` of two numbers in the vectors; the receipt of the encoder.
    """
    encode, receipt = _load(model, pooling, BATCH)
    encoder = sentence_transformer(model, pooling)

    def usual(texts: list[str]) -> np.ndarray:
        return encoder.encode(texts, batch_size=BATCH, show_progress_bar=False)

    read = list(stream_texts(texts)) if texts else make_world(sentences=2000, pairs=0, triplets=0).train
    lengths = np.array([encode.count_tokens([text]) for text in read])
    near = np.abs(lengths - np.median(lengths)) <= 0.1 * np.median(lengths)
    for warm in (encode, usual):
        warm(read[:BATCH])  # the first forward pass of a process is the slowest
    sets = {}
    for name, rows in {"mixed": np.arange(len(read)), "one length": np.flatnonzero(near)}.items():
        figures = race_encoders(encode, usual, [read[row] for row in rows], repeats)
        sets[name] = {"texts": len(rows), "tokens": int(lengths[rows].sum()), **figures}
    return {"batch_size": BATCH, "sets": sets, **receipt}


def race_encoders(encode: Encode, usual: Encode, texts: list[str], repeats: int) -> dict[str, object]:
    """Return the figures of `race` for two encoders, and the largest `difference` of their vectors."""
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


def sentence_transformer(model: str, pooling: str | None, max_length: int | None = None) -> SentenceTransformer:
    """Load a model of the zoo, or a plain encoder with a pooling and a longest text, in float32."""
    refuse_missing("this benchmark", "sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if pooling not in (None, "cls", "mean", "max"):
        raise UserError(f"pooling: sentence-transformers has no {pooling}; give cls, mean or max")
    options = {"dtype": "float32", "use_safetensors": True}
    if pooling is None:
        return SentenceTransformer(model, model_kwargs=options)
    encoder = Transformer(model, model_kwargs=options, max_seq_length=max_length)
    return SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), pooling)])


def benchmark_sts(
    model: str,
    pooling: str | None,
    data: str,
    *,
    tasks: Sequence[str] = STS_TASKS,
    splits: str = "test",
    repeats: int = 5,
) -> dict[str, object]:
    """Time the suite `sts` against the way SentEval encodes the same pairs with the same encoder.

    SentEval encodes task by task and sub-set by sub-set, both sides of 128 pairs at a time. It sorts the sub-sets of
    STS12–16 by length, but not STS-B and SICK-R.

    Returns:
        The figures of `race`; `sentences`, the number that each side encodes; `difference`, the largest between the
        scores of the two sides; the receipt of the encoder.
    """
    if unknown := [name for name in tasks if name not in STS_TASKS]:
        raise UserError(f"tasks: {unknown[0]!r} must be one of {', '.join(STS_TASKS)}")
    root = find_senteval(data).root
    suite = [load_task(name, data) for name in tasks]
    usual = [senteval_order(task, root) for task in suite]
    others = [split for name in tasks for split in OTHER_SPLITS.get(name, ()) if splits == "all"]
    unscored = [senteval_order(load_task(split, data), root) for split in others]
    pairs = sum(len(rows) for subsets in [*usual, *unscored] for rows in subsets)
    encode, receipt = _load(model, pooling, SENTEVAL_BATCH)
    encode_batch = plain_pass(*padded_encoder(model, pooling))
    for warm in (encode, encode_batch):
        warm(sorted(suite[0].sentences())[:SENTEVAL_BATCH])  # the first forward pass of a process is the slowest
    scores: dict[str, list[float]] = {}

    def run_suite() -> None:
        scores["ours"] = [result["value"] for result in evaluate_tasks(encode, suite)]

    def run_senteval() -> None:
        scores["usual"] = [score_as_senteval(encode_batch, subsets) for subsets in usual]
        for subsets in unscored:
            score_as_senteval(encode_batch, subsets)

    figures = race(run_suite, run_senteval, repeats=repeats)
    sentences = {"ours": len(set().union(*(task.sentences() for task in suite))), "usual": 2 * pairs}
    difference = float(np.abs(np.subtract(scores["ours"], scores["usual"])).max())
    about = {"tasks": list(tasks), "splits": splits, "sentences": sentences}
    return {**about, **figures, "difference": difference, **receipt}


def padded_encoder(model: str, pooling: str | None) -> tuple[EncodesTexts, PreTrainedTokenizerBase]:
    """Load an encoder that computes the padding of a batch, and its tokenizer."""
    encoder: EncodesTexts
    if pooling is None:
        published = load_checkpoint(model)
        encoder, tokenizer = published, checkpoint_tokenizer(published, model)
    else:
        encoder, tokenizer = plain_encoder(model, pooling)
        encoder.compute_padding()
    return encoder.eval().to(default_device()), tokenizer


def plain_pass(encoder: EncodesTexts, tokenizer: PreTrainedTokenizerBase) -> Encode:
    """Return a function that encodes a batch as evaluation scripts do: padded, in its order, in one forward pass."""

    @torch.inference_mode()
    def encode(texts: list[str]) -> np.ndarray:
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(encoder.device)
        return encoder(**batch).pooler_output.cpu().numpy()

    return encode


def senteval_order(task: PairTask, root: Path) -> list[list[Row]]:
    """Return the sub-sets of a task, each with its pairs in the order in which SentEval encodes them."""
    if task.name not in SUBSETS:
        return [[(*pair, score) for pair, score in zip(task.pairs, task.scores, strict=True)]]
    folder = root / "STS" / f"{task.name}-en-test"
    subsets = [read_subset(folder, subset) for subset in SUBSETS[task.name]]
    return [sorted(rows, key=lambda row: (len(row[0].split()), len(row[1].split()), row[2])) for rows in subsets]


def score_as_senteval(encode: Encode, subsets: list[list[Row]]) -> float:
    """Return Spearman × 100 over all sub-sets. Of every batch, the first sentences are encoded, then the second."""
    similarities: list[np.ndarray] = []
    gold: list[float] = []
    for rows in subsets:
        for start in range(0, len(rows), SENTEVAL_BATCH):
            first, second, scores = zip(*rows[start : start + SENTEVAL_BATCH], strict=True)
            similarities.append(cosines(encode(list(first)), encode(list(second))))
            gold += scores
    return float(spearman(np.concatenate(similarities)[None], np.array(gold)[None])[0])
