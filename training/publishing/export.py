"""The second door to a checkpoint: the same vectors for people and servers that allow no remote code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from csezoo.modeling import SentenceEncoderConfig
from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..errors import UserError, one_line
from ..evaluation.encoders import load_checkpoint
from ..files import replace_directory
from ..hub import local_directory
from .export_card import TEXTS, export_card, ways_to_use
from .onnx_graph import TOLERANCE, largest_difference, require_onnx, write_onnx
from .plain import separate_template_mask, write_plain_model
from .repository import save_tokenizer
from .staging import PLACEHOLDER, finished_repository


def export(run: str, to: str, *, onnx: bool = False) -> dict[str, float]:
    """Write a checkpoint of the zoo as a repository without code, and check it where csezoo is not imported.

    The directory holds a plain transformers model (`BertModel`, `RobertaModel`), its tokenizer with the prompt in it,
    the modules of sentence-transformers that make a sentence's vector from the tokens', and a card with the lines that
    do it. It is written whole, or, if it gives other vectors, not at all.

    Args:
        run: a run directory with `best/` in it, a repository directory, or a Hub id.
        to: a new or empty directory.
        onnx: add `onnx/model.onnx`. Of a model without a plain form the directory then holds this, the tokenizer and
            the card.

    Returns:
        For each way to use it the largest difference from the vectors of the full model, see `largest_difference`.

    Raises:
        UserError: `run` is no finished checkpoint of the zoo, it has no plain form, `to` holds something, a package
            that is needed is missing, or the vectors differ by more than 1e-5.

    Example:
        `export("runs/quickstart", "quickstart-plain")`
    """
    target = Path(to).absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"--to: {to} is not an empty directory: give a new one, or delete what is there")
    if onnx:
        require_onnx()
    source = finished_repository(str(local_directory(run)))
    logging.disable_progress_bar()
    encoder, tokenizer = _load(source)
    reason = cast(SentenceEncoderConfig, encoder.config).needs_own_code
    if reason and not onnx:
        raise UserError(
            f"{run} has no plain form: {reason}. Load it with trust_remote_code=True, or give --onnx for its graph"
        )
    if not reason and find_spec("sentence_transformers") is None:
        raise UserError("export runs what it writes in sentence-transformers: pip install sentence-transformers")
    texts = _texts(tokenizer)
    expected = encoder.encode(texts, tokenizer)
    if encoder.config.pooling == "prompt":
        tokenizer = separate_template_mask(encoder, tokenizer)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--to: {to} cannot be made ({one_line(error)})") from error
    try:
        with tqdm(total=3, desc="Exporting", disable=not sys.stderr.isatty()) as bar:
            if reason:
                save_tokenizer(partial, tokenizer)
            else:
                write_plain_model(partial, encoder, tokenizer)
            bar.update()
            if onnx:
                write_onnx(partial / "onnx" / "model.onnx", encoder, tokenizer, texts)
            bar.update()
            ways = ways_to_use(partial, encoder)
            export_card(source / "README.md", encoder, ways, reason).save(partial / "README.md")
            differences = check_export(partial, ways, texts, expected)
            bar.update()
        replace_directory(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return differences


def _load(source: Path) -> tuple[SentenceEncoderModel, PreTrainedTokenizerFast]:
    encoder = load_checkpoint(str(source)).eval()
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise UserError(f"{source} could not be loaded ({one_line(error)})") from error
    if not isinstance(encoder, SentenceEncoderModel):
        raise UserError(f"{source} is no checkpoint of the zoo but a {type(encoder).__name__}, without code already")
    return encoder, tokenizer


def _texts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """What every way to use an export is checked on: short, empty, with a mask token of its own, too long."""
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
    """Run the card's own lines in a process that does not import csezoo.

    Args:
        ways: Python that makes `embeddings`, see `ways_to_use`.
        expected: the vectors `(n, D)` of the full model.

    Returns:
        The largest difference of each way.

    Raises:
        UserError: one is larger than 1e-5, or the lines fail.
    """
    path = json.dumps(str(directory))
    lines = ["import json, sys", "given = json.load(sys.stdin)", "found = {}"]
    for way, code in ways.items():
        lines += [code.replace(f'"{PLACEHOLDER}"', path).replace(TEXTS, "texts = given")]
        lines += [f"found[{way!r}] = embeddings.tolist()"]
    lines += ['assert "csezoo" not in sys.modules', "print(json.dumps(found))"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        cwd=directory,
    )
    if done.returncode != 0:
        raise UserError(f"the export could not be used and is not kept: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    differences = {way: largest_difference(np.asarray(vectors), expected) for way, vectors in found.items()}
    for way, difference in differences.items():
        if not difference <= TOLERANCE:
            raise UserError(f"the export differs from the model by {difference:.1g} in {way} and is not kept")
    return differences
