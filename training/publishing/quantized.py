"""Quantise an exported ONNX file to int8, for ONNX Runtime and OpenVINO, and measure what that saves and costs."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from csezoo.modeling.serving.modeling_csezoo import CsezooModel

from ..evaluation import evaluate
from ..evaluation.report import average, format_table
from ..evaluation.sentence_vectors import Encode
from ..evaluation.tasks.sts import cosines
from .onnx_graph import INPUTS

# sentence-transformers' own exporters (`export_dynamic_quantized_onnx_model`, …) need optimum. They quantise the
# encoder without its pooling and further layers, write other file names, and calibrate on texts that they download.
FILE = "model_int8.onnx"  # the name by which transformers.js and embed-anything find it
OPENVINO_FILE = "openvino_model_qint8_quantized.xml"  # the name that sentence-transformers gives it
BATCH_SIZE = 32
ROUNDS = 5
NOT_MEASURED = "What it costs on STS was not measured: `--data` of `csezoo export` measures it."
# What speed and similarity are measured on: 96 sentences of 5 to 20 words.
MEASURED_TEXTS = [
    f"{who} {does} {what}{where}."
    for who in ("The old woman", "A group of students", "Nobody in the office", "My brother's dog")
    for does in ("carefully painted", "was looking for", "has never seen", "will sell")
    for what in ("the blue door", "a letter that arrived on Monday", "two thirds of the harvest")
    for where in ("", " in the small town near the river, although it had rained for several days")
]
# What the ranges of activations are taken from: 144 other sentences, of 3 to 40 words.
CALIBRATION_TEXTS = [
    f"{opening}{who} {does}{end}"
    for opening in ("", "According to the report of 2019, ", "Is it true that ")
    for who in (
        "children",
        "the new mayor of Vienna",
        "she and her two sisters",
        "several engineers, tired but happy,",
    )
    for does in ("laughed", "lost 3.5 million dollars", "do not agree with the committee", "play football in the rain")
    for end in (
        ".",
        " while a white cat slept on the sofa next to the open window!",
        ", because the last train to the airport leaves at ten past six in the morning and nobody had bought tickets?",
    )
]


def write_int8(file: Path) -> Path:
    """Write an ONNX file with int8 weights beside a float32 one.

    This is dynamic quantisation of ONNX Runtime: weights are quantised per output channel, activations when the model
    runs. It needs no calibration texts, and the same file is always quantised to the same bytes.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = file.with_name(FILE)
    model = onnx.load(file)
    made_by = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        before = made_by.get(node.input[0]) if node.op_type == "LayerNormalization" else None
        if before is not None and before.op_type == "Add":
            # The same, but ONNX Runtime does not fuse it with the layer norm. Its fused kernel is slower than the two:
            # it takes a fifth of the time of an int8 model.
            before.op_type = "Sum"
    # ONNX Runtime transposes weights, and would find their old shapes here.
    del model.graph.value_info[:]
    logging.getLogger().disabled = True  # it recommends a preparation that only static quantisation needs
    try:
        quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True)
    finally:
        logging.getLogger().disabled = False
    return target


def write_openvino_int8(file: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write an int8 model for OpenVINO, in `openvino/` beside the directory of a float32 ONNX file.

    This is static quantisation of NNCF for Transformers. The same file is always quantised to the same bytes.

    Returns:
        The `.xml` file; its weights are in the `.bin` file beside it.
    """
    import nncf
    import openvino

    def inputs(text: str) -> dict[str, np.ndarray]:
        batch = tokenizer([text], truncation=True, return_tensors="np")
        return {name: batch[name].astype(np.int64) for name in INPUTS}

    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(io.StringIO()):  # NNCF's progress bars
        model = nncf.quantize(
            openvino.convert_model(file),
            nncf.Dataset(CALIBRATION_TEXTS, inputs),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(CALIBRATION_TEXTS),
        )
    for number, step in enumerate(model.get_ordered_ops()):  # its own names count what this process has made
        step.set_friendly_name(f"{step.get_type_name()}_{number}")
    target = file.parent.parent / "openvino" / OPENVINO_FILE
    openvino.save_model(model, target, compress_to_fp16=False)
    return target


def onnx_encoder(file: Path, tokenizer: PreTrainedTokenizerBase) -> Encode:
    """Return a function from texts to the vectors `(n, D)` of an ONNX file. It runs on one thread."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = 1  # more would wait in a loop, which counts as processor time
    session = InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return _encoder(lambda inputs: session.run(["sentence_embedding"], inputs)[0], tokenizer)


def openvino_encoder(file: Path, tokenizer: PreTrainedTokenizerBase) -> Encode:
    """Return a function from texts to the vectors `(n, D)` of an OpenVINO file. It runs on one thread."""
    from openvino import Core

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    model = Core().compile_model(file, "CPU", settings)
    return _encoder(lambda inputs: model(inputs)["sentence_embedding"], tokenizer)


def _encoder(run: Callable[[dict[str, np.ndarray]], np.ndarray], tokenizer: PreTrainedTokenizerBase) -> Encode:
    def encode(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        vectors: list = [None] * len(texts)
        for start in range(0, len(order), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            batch = tokenizer([texts[row] for row in rows], padding=True, truncation=True, return_tensors="np")
            found = run({name: batch[name].astype(np.int64) for name in INPUTS})
            for row, vector in zip(rows, found, strict=True):
                vectors[row] = vector
        return np.stack(vectors)

    return encode


def quantize_and_measure(
    file: Path,
    encoder: CsezooModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    openvino: bool = False,
    data: str | None = None,
) -> list[str]:
    """Write the int8 files, and measure what they save and cost.

    Returns:
        What the command prints and the card says: bytes, processor time, lowest cosines, and scores on the seven
            STS tasks if there is `data`.
    """

    def by_torch(texts: list[str]) -> np.ndarray:
        return encoder.encode(texts, tokenizer, batch_size=BATCH_SIZE)

    def prompted(encode: Encode) -> Encode:  # as `by_torch`, which adds the default prompt
        return lambda texts: encode([encoder.prompt_text() + text for text in texts])

    written = write_int8(file)
    found = [(written, _size_with_data(written), prompted(onnx_encoder(written, tokenizer)))]
    if openvino:
        written = write_openvino_int8(file, tokenizer)
        size = sum(part.stat().st_size for part in written.parent.iterdir())
        found.append((written, size, prompted(openvino_encoder(written, tokenizer))))
    before = evaluate(by_torch, ["sts"], data)["results"] if data else []
    in_float32 = by_torch(MEASURED_TEXTS)
    lines = []
    for written, size, encode in found:
        together = encode(MEASURED_TEXTS)
        alone = np.concatenate([encode([text]) for text in MEASURED_TEXTS])
        lines.append(
            f"`{written.parent.name}/{written.name}` has {size / _size_with_data(file):.0%} of the bytes of "
            f"`onnx/model.onnx`. A forward pass takes {processor_time(encode, by_torch):.2f} of the processor time "
            "that torch needs in float32 (one thread, the machine of the export). The lowest cosine of a sentence's "
            f"vectors before and after is {cosines(in_float32, together).min():.4f}, and that of its "
            f"vectors alone and in a batch of {BATCH_SIZE} is {cosines(alone, together).min():.4f}, over "
            f"{len(MEASURED_TEXTS)} sentences."
        )
        lines += cost(before, evaluate(encode, ["sts"], data)["results"]) if data else [NOT_MEASURED]
    return lines


def _size_with_data(file: Path) -> int:
    """Return the bytes of an ONNX file, and of the weights that torch writes beside it if they are large."""
    return sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))


def cost(before: list[dict], after: list[dict]) -> list[str]:
    """Return what int8 costs on the seven STS tasks, from results in float32 and in int8."""
    lost = average(before) - average(after)
    change = f"{'loses' if lost >= 0 else 'gains'} {abs(lost):.2f} points"
    table = format_table([("float32", before), ("int8", after)])
    return [f"On the seven STS tasks it {change} (Spearman x 100):", f"```\n{table}\n```"]


def processor_time(first: Encode, second: Encode) -> float:
    """Return the processor time of one encoder as a share of another's: the median over rounds taken in turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shares = []
        for _ in range(ROUNDS):
            times = []
            for encode in (first, second):
                start = time.process_time()
                encode(MEASURED_TEXTS)
                times.append(time.process_time() - start)
            shares.append(times[0] / times[1])
    finally:
        torch.set_num_threads(threads)
    return float(np.median(shares))
