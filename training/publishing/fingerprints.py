"""Fingerprints: written into a repository when it is saved, compared with it wherever it went."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from csezoo.modeling import METHODS
from csezoo.modeling.encoding import load_tokenizer
from csezoo.modeling.fingerprint import FINGERPRINT_NAME, embed_token_ids, tokenize_sentences
from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..environment import versions
from ..errors import UserError, one_line
from ..evaluation.encoders import config_model_type, load_checkpoint
from ..hub import differing_files, local_directory, sha256

# Short and long, in both cases, with accents, digits, signs and characters that no tokenizer here has pieces for. The
# last is longer than any of BERT's family reads.
SENTENCES = [
    "Yes",
    "A cat sits on the mat.",
    "The QUICK brown Fox jumps over the Lazy dog",
    "Königin Zoë mag crème brûlée, señor Ångström nicht.",
    "Is it 3.14 or 2,718? (Both; by 100 % & more!)",
    "Good morning 🙂 ☃ 你好",
    "  two  spaces,\ta tab and don't-split hy-phens ",
    " ".join(["the river runs past the old house and the small horse sees it"] * 80),
]
DIGITS = 7  # of a float32


def write_fingerprint(directory: Path, model_class: type[SentenceEncoderModel]) -> None:
    """Load a repository as it lies there, on the CPU and in float32, and store beside it what it gives.

    Args:
        directory: with everything in it that is not to change any more; the card is written afterwards.
        model_class: the serving model's.
    """
    model = model_class.from_pretrained(directory, dtype=torch.float32)
    token_ids = tokenize_sentences(load_tokenizer(model), SENTENCES)
    embeddings = embed_token_ids(model, token_ids).tolist()
    fingerprint = {
        "versions": versions(),
        "files": {path.name: sha256(path) for path in sorted(directory.iterdir())},
        "sentences": SENTENCES,
        "token_ids": token_ids,
        "embeddings": [[float(f"{x:.{DIGITS}g}") for x in vector] for vector in embeddings],
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fingerprint.items())
    (directory / FINGERPRINT_NAME).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def verify_repository(repository: str, revision: str | None = None) -> list[str]:
    """Compare a repository with its fingerprint: checksums, token ids, vectors. Its own code is not run.

    Args:
        repository: directory or Hub id.
        revision: branch, tag or commit on the Hub.

    Returns:
        What was compared, a line each.

    Raises:
        UserError: what differs, all of it on one line.

    Example:
        `verify_repository("runs/quickstart/best")`
    """
    directory = local_directory(repository, revision)
    fingerprint = _read_fingerprint(directory, repository)
    problems = differing_files(directory, fingerprint["files"])
    lines = [f"files: {len(fingerprint['files'])} have the checksums that are stored"]
    try:
        if config_model_type(str(directory)) not in METHODS:
            raise UserError("its model is none of the zoo's")
        lines += load_checkpoint(str(directory)).verify()
    except (UserError, ValueError) as error:
        problems.append(str(error))
    if problems:
        raise UserError(f"{repository} is not what was saved: {'; '.join(problems)}")
    return lines


def _read_fingerprint(directory: Path, repository: str) -> dict:
    path = directory / FINGERPRINT_NAME
    if not path.is_file():
        raise UserError(f"{repository} has no {FINGERPRINT_NAME}: no model of the zoo, or saved before it had them")
    try:
        fingerprint = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({one_line(error)})") from error
    if not isinstance(fingerprint, dict):
        raise UserError(f"{path} is no fingerprint but a {type(fingerprint).__name__}")
    if missing := {"files", "sentences", "token_ids", "embeddings"} - fingerprint.keys():
        raise UserError(f"{path} has no {', '.join(sorted(missing))}")
    if not isinstance(fingerprint["files"], dict):
        raise UserError(f"{path}: files are no mapping of names to checksums")
    return fingerprint
