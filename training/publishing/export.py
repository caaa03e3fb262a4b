"""Export a checkpoint as a repository without custom code, for users and servers that allow no remote code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from csezoo.modeling import SentenceEncoderConfig
from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..errors import UserError
from ..evaluation.encoders import checkpoint_tokenizer, load_checkpoint
from ..files import empty_target, new_directory
from ..hub import local_directory
from ..loading.templates import serving_tokenizer, template_token_ids
from .export_card import TEXTS, export_card, ways_to_use
from .onnx_graph import TOLERANCE, largest_difference, require, write_onnx
from .plain import separate_template_mask, write_plain_model, write_without_plain_form
from .quantized import quantize_and_measure
from .staging import PLACEHOLDER, finished_repository


def export(
    run: str,
    to: str,
    *,
    onnx: bool = False,
    truncate_dim: int | None = None,
    quantize: str | None = None,
    openvino: bool = False,
    data: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, float]:
    """Write a checkpoint of the zoo as a repository without custom code, and check its vectors without csezoo.

    The directory contains a plain transformers model (`BertModel`, `RobertaModel`), its tokenizer with the prompt
    built in, the sentence-transformers modules that turn token vectors into a sentence vector, and a card that shows
    how to use it. If the vectors differ from the checkpoint's, nothing is written.

    Args:
        run: a run directory with `best/` in it, a repository directory, or a Hub id.
        to: a new or empty directory.
        onnx: also write `onnx/model.onnx`. For a model without a plain form, write only this, the tokenizer and the
            card.
        truncate_dim: keep this many dimensions, the first ones.
        quantize: `int8` to also write `onnx/model_int8.onnx`, with what it saves and costs on the card.
        openvino: with `quantize`, also write `openvino/openvino_model_qint8_quantized.xml`.
        data: `hub` or a directory in SentEval's layout, to measure the cost of `quantize` on the seven STS tasks.
        report: called with each line on `quantize`.

    Returns:
        For each way to use the export, the largest difference from the vectors of the checkpoint, see
        `largest_difference`.

    Raises:
        UserError: `run` is not a finished checkpoint of the zoo, it has no plain form, `to` is not empty, a needed
            package is missing, `quantize` has no ONNX file to work on, `truncate_dim` is not below the model's
            dimensions, or the vectors differ by more than 1e-5.

    Example:
        `export("runs/quickstart", "quickstart-plain")`
    """
    if quantize and not onnx:
        raise UserError("quantize: it quantises the ONNX file; give --onnx too")
    if data and not quantize:
        raise UserError("data: it measures the cost of --quantize; give --quantize int8 too")
    if openvino and not quantize:
        raise UserError(
            "openvino: it adds an int8 file; give --quantize int8 too (OpenVINO can read the float32 ONNX file itself)"
        )
    target = empty_target(to)
    if onnx:
        require("--onnx", "onnx", "onnxscript", "onnxruntime")
    if openvino:
        require("--openvino", "openvino", "nncf")
    source = finished_repository(str(local_directory(run)))
    logging.disable_progress_bar()
    encoder, tokenizer = _load(source)
    reason = cast(SentenceEncoderConfig, encoder.config).needs_own_code
    if reason and not onnx:
        raise UserError(
            f"{run} has no plain form: {reason}. Load it with trust_remote_code=True, or export it with --onnx"
        )
    if not reason and find_spec("sentence_transformers") is None:
        raise UserError("export checks its result with sentence-transformers: pip install sentence-transformers")
    size = encoder.config.embedding_size
    if truncate_dim is not None and not 1 <= truncate_dim < size:
        raise UserError(f"truncate_dim: {truncate_dim} must be at least 1 and below {size}, the dimensions of {run}")
    texts = _texts(tokenizer)
    expected = encoder.encode(texts, tokenizer, truncate_dim=truncate_dim)
    if encoder.config.pooling == "prompt":
        tokenizer = separate_template_mask(encoder, tokenizer)
    else:  # an old checkpoint's tokenizer does not work in transformers.js
        prompts = encoder.config.prompt_token_ids
        template = prompts[0] if prompts else template_token_ids(tokenizer)
        tokenizer = serving_tokenizer(tokenizer, template, max_length=tokenizer.model_max_length)
    with new_directory(target) as partial, tqdm(total=3, desc="Exporting", disable=not sys.stderr.isatty()) as bar:
        if reason:
            write_without_plain_form(partial, encoder, tokenizer)
        else:
            write_plain_model(partial, encoder, tokenizer, truncate_dim)
        bar.update()
        more: list[str] = []
        if onnx:
            write_onnx(partial / "onnx" / "model.onnx", encoder, tokenizer, texts, truncate_dim)
            if quantize:
                measured = quantize_and_measure(
                    partial / "onnx" / "model.onnx",
                    encoder,
                    tokenizer,
                    openvino=openvino,
                    data=data,
                    truncate_dim=truncate_dim,
                )
                more = [line for one in measured for line in one.lines()]
            for line in more:
                report(line)
        bar.update()
        ways = ways_to_use(partial, encoder, truncate_dim)
        export_card(source / "README.md", encoder, ways, reason, truncate_dim, more).save(partial / "README.md")
        differences = check_export(partial, ways, texts, expected)
        bar.update()
    return differences


def _load(source: Path) -> tuple[SentenceEncoderModel, PreTrainedTokenizerFast]:
    encoder = load_checkpoint(str(source)).eval()
    if not isinstance(encoder, SentenceEncoderModel):
        raise UserError(
            f"{source}: expected a checkpoint of the zoo, got a {type(encoder).__name__}; it needs no export, "
            "because it has no custom code"
        )
    return encoder, cast(PreTrainedTokenizerFast, checkpoint_tokenizer(encoder, str(source)))


def _texts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return the texts on which an export is checked: short, empty, with a mask token in it, too long."""
    sentence = "A cat sits on the mat."
    return [
        sentence,
        "A man plays the guitar while his friends are dancing in the rain.",
        "Yes",
        "",
        f"{sentence} {tokenizer.mask_token}, it is said.",
        f"{sentence} " * tokenizer.model_max_length,
    ]


def check_export(directory: Path, ways: dict[str, str], texts: list[str], expected: np.ndarray) -> dict[str, float]:
    """Run the code of the export's card in a process that does not import csezoo, and compare the vectors.

    Args:
        directory: the export.
        ways: Python that computes `embeddings`, by library, see `ways_to_use`.
        texts: the texts to embed.
        expected: their vectors `(n, D)` from the checkpoint.

    Returns:
        The largest difference of each way.

    Raises:
        UserError: a difference is larger than 1e-5, or the code fails.
    """
    path = repr(str(directory))
    lines = ["import json, sys", "texts = json.load(sys.stdin)", "results = {}"]
    for way, code in ways.items():
        lines += [code.replace(f'"{PLACEHOLDER}"', path).replace(TEXTS, "")]
        lines += [f"results[{way!r}] = embeddings.tolist()"]
    lines += ['assert "csezoo" not in sys.modules', "print(json.dumps(results))"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        cwd=directory,
    )
    if done.returncode != 0:
        *_, last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]  # a killed process is silent
        raise UserError(f"the export does not run and was deleted: {last}")
    results = json.loads(done.stdout.strip().splitlines()[-1])
    differences = {way: largest_difference(np.asarray(vectors), expected) for way, vectors in results.items()}
    for way, difference in differences.items():
        if not difference <= TOLERANCE:
            raise UserError(
                f"the export was deleted: with {way} its vectors differ from the model's by {difference:.1g} "
                f"({TOLERANCE:g} is allowed)"
            )
    return differences
