"""Fingerprints: write one into a repository when it is saved, and compare the repository with it later."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from csezoo.modeling import METHODS
from csezoo.modeling.encoding import load_tokenizer
from csezoo.modeling.fingerprint import FINGERPRINT_NAME, embed_token_ids, tokenize_sentences
from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..cards.method_texts import IDEAS
from ..environment import versions
from ..errors import UserError, one_line
from ..evaluation.encoders import config_model_type, load_checkpoint
from ..hub import added_files, differing_files, local_directory, sha256
from ..pictures.captions import PICTURES

# Short and long sentences, lower and upper case, accents, digits, signs, and characters without word pieces in any of
# the zoo's tokenizers. The last sentence is longer than any encoder of the BERT family reads.
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
# Files without a checksum: what a card and a run add to a saved model, and what no library loads.
WITHOUT_CHECKSUM = {FINGERPRINT_NAME, "README.md", "recipe.yaml", "results.json", "LICENSE", "NOTICE", *PICTURES}
WITHOUT_CHECKSUM |= {path.name for path in IDEAS.glob("*.svg")}
DIGITS = 7  # significant digits, as many as a float32 has


def write_fingerprint(directory: Path, model_class: type[SentenceEncoderModel]) -> None:
    """Load a saved repository on the CPU in float32, and store its checksums, token ids and vectors in it.

    Args:
        directory: the repository, complete except for its card, which has no checksum.
        model_class: the class of the serving model.
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
    """Compare a repository with its fingerprint: checksums, token ids, vectors. Code in the repository is not run.

    A file without a checksum is a difference too, unless it is one of those that a card or a run adds.

    Args:
        repository: directory or Hub id.
        revision: branch, tag or commit on the Hub.

    Returns:
        One line for each comparison.

    Raises:
        UserError: something differs; all differences are in one line.

    Example:
        `verify_repository("runs/quickstart/best")`
    """
    directory = local_directory(repository, revision)
    fingerprint = _read_fingerprint(directory, repository)
    problems = differing_files(directory, fingerprint["files"])
    problems += added_files(directory, {*fingerprint["files"], *WITHOUT_CHECKSUM})
    lines = [f"files: the checksums of {len(fingerprint['files'])} files are as stored"]
    try:
        if config_model_type(str(directory)) not in METHODS:
            raise UserError("its model is not a model of the zoo")
        lines += load_checkpoint(str(directory)).verify()
    except (UserError, ValueError) as error:
        problems.append(str(error))
    if problems:
        raise UserError(f"{repository} is not what was saved: {'; '.join(problems)}")
    return lines


def _read_fingerprint(directory: Path, repository: str) -> dict:
    path = directory / FINGERPRINT_NAME
    if not path.is_file():
        raise UserError(
            f"{repository} has no {FINGERPRINT_NAME}: it is not a model of the zoo, or an old version saved it; train "
            "or publish it again"
        )
    try:
        fingerprint = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({one_line(error)})") from error
    if not isinstance(fingerprint, dict):
        raise UserError(f"{path}: expected a JSON object, got a {type(fingerprint).__name__}")
    if missing := {"files", "sentences", "token_ids", "embeddings"} - fingerprint.keys():
        raise UserError(f"{path} has no {', '.join(sorted(missing))}")
    if not isinstance(fingerprint["files"], dict):
        raise UserError(f"{path}: files must map file names to checksums")
    return fingerprint
