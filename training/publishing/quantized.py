"""Quantise an exported ONNX file to int8, and measure what that saves and what it costs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..evaluation import evaluate
from ..evaluation.report import average, format_table
from ..evaluation.tasks.sts import unit_vectors
from .onnx_graph import INPUTS

FILE = "model_int8.onnx"  # the name by which transformers.js and embed-anything find it
BATCH_SIZE = 32
ROUNDS = 5
# What speed and similarity are measured on: 96 sentences of 5 to 20 words.
TEXTS = [
    f"{who} {does} {what}{where}."
    for who in ("The old woman", "A group of students", "Nobody in the office", "My brother's dog")
    for does in ("carefully painted", "was looking for", "has never seen", "will sell")
    for what in ("the blue door", "a letter that arrived on Monday", "two thirds of the harvest")
    for where in ("", " in the small town near the river, although it had rained for several days")
]


@dataclass(frozen=True)
class Quantized:
    """What int8 saves and costs.

    Args:
        size: bytes of the file, as a share of the float32 file's.
        processor_time: of a forward pass, as a share of torch's in float32, one thread each.
        similarity: the lowest cosine of a sentence's vectors in int8 and float32.
        before, after: results on the seven STS tasks in float32 and int8; empty without data.
    """

    size: float
    processor_time: float
    similarity: float
    before: list[dict]
    after: list[dict]

    def lines(self) -> list[str]:
        """Return what the command prints and the card says."""
        lines = [
            f"`onnx/{FILE}` has {self.size:.0%} of the bytes of `onnx/model.onnx`. A forward pass takes "
            f"{self.processor_time:.2f} of the processor time that torch needs in float32 (one thread, the machine of "
            f"the export). The lowest cosine of a sentence's vectors before and after is {self.similarity:.4f}, over "
            f"{len(TEXTS)} sentences."
        ]
        if not self.before:
            return [*lines, "What it costs on STS was not measured: `--data` of `csezoo export` measures it."]
        cost = average(self.before) - average(self.after)
        table = format_table([("float32", self.before), ("int8", self.after)])
        return [*lines, f"On the seven STS tasks it loses {cost:.2f} points (Spearman x 100):", f"```\n{table}\n```"]


def write_int8(file: Path) -> Path:
    """Write an ONNX file with int8 weights beside a float32 one.

    Like `export_dynamic_quantized_onnx_model` of sentence-transformers, this is dynamic quantisation of ONNX Runtime:
    weights are quantised per output channel, activations when the model runs. It needs no calibration texts, and the
    same file gives the same bytes.

    Args:
        file: the float32 file.

    Returns:
        The new file.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = file.with_name(FILE)
    logging.getLogger().disabled = True  # it recommends a preparation that only static quantisation needs
    try:
        quantize_dynamic(file, target, weight_type=QuantType.QInt8, per_channel=True)
    finally:
        logging.getLogger().disabled = False
    return target


def onnx_encoder(file: Path, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], np.ndarray]:
    """Return a function from texts to the vectors `(n, D)` of an ONNX file. It runs on one thread."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = 1  # more would wait in a loop, which counts as processor time
    session = InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def encode(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        vectors: list = [None] * len(texts)
        for start in range(0, len(order), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            batch = tokenizer([texts[row] for row in rows], padding=True, truncation=True, return_tensors="np")
            (found,) = session.run(["sentence_embedding"], {name: batch[name].astype(np.int64) for name in INPUTS})
            for row, vector in zip(rows, found, strict=True):
                vectors[row] = vector
        return np.stack(vectors)

    return encode


def measure(
    file: Path,
    quantized: Path,
    encoder: SentenceEncoderModel,
    tokenizer: PreTrainedTokenizerBase,
    data: str | None = None,
    truncate_dim: int | None = None,
) -> Quantized:
    """Measure what quantisation saves and what it costs.

    Args:
        file, quantized: the ONNX files in float32 and int8.
        encoder: the model in float32, on the CPU.
        tokenizer: its tokenizer.
        data: of the STS tasks, as `csezoo evaluate --data` takes it; without it they are left out.
        truncate_dim: dimensions that the files keep.
    """
    encode = onnx_encoder(quantized, tokenizer)

    def by_torch(texts: list[str]) -> np.ndarray:
        return encoder.encode(texts, tokenizer, batch_size=BATCH_SIZE, truncate_dim=truncate_dim)

    cosines = (unit_vectors(encode(TEXTS)) * unit_vectors(by_torch(TEXTS))).sum(1)
    share = processor_time(encode, by_torch)
    before, after = (
        ([], []) if data is None else (evaluate(one, ["sts"], data)["results"] for one in (by_torch, encode))
    )
    size = quantized.stat().st_size / file.stat().st_size
    return Quantized(size, share, float(cosines.min()), before, after)


def processor_time(first: Callable[[list[str]], np.ndarray], second: Callable[[list[str]], np.ndarray]) -> float:
    """Return the processor time of one encoder as a share of another's: the median over rounds taken in turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shares = []
        for _ in range(ROUNDS):
            times = []
            for encode in (first, second):
                start = time.process_time()
                encode(TEXTS)
                times.append(time.process_time() - start)
            shares.append(times[0] / times[1])
    finally:
        torch.set_num_threads(threads)
    return float(np.median(shares))
