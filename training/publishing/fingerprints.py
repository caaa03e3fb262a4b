"""Fingerprints: complete one with checksums when a repository is saved, and compare the repository with it later."""

from __future__ import annotations

import json
from pathlib import Path

from csezoo.modeling.serving.fingerprint_csezoo import FINGERPRINT_NAME

from ..cards.method_texts import all_ideas
from ..environment import versions
from ..errors import UserError, library_errors
from ..evaluation.encoders import checkpoint_tokenizer, is_published, load_checkpoint
from ..files import read_json
from ..hub import (
    added_files,
    differing_files,
    files_in,
    local_directory,
    refuse_run_or_adapter,
    sha256,
    unreadable_directories,
)
from ..pictures.captions import PICTURES

# Files without a checksum: what a card and a run add to a saved model, and what no library loads.
WITHOUT_CHECKSUM = {FINGERPRINT_NAME, "README.md", "recipe.yaml", "results.json", "LICENSE", "NOTICE", *PICTURES}
WITHOUT_CHECKSUM |= {path.name for path in all_ideas().values()}
FORMATS = ("onnx", "openvino")  # folders of other formats of the weights
NO_CHECKSUMS = "files: there are no checksums, because save_pretrained wrote the repository"


def add_checksums(directory: Path) -> None:
    """Add the checksums of all files, and the versions of all libraries, to the fingerprint of a saved repository."""
    saved = json.loads((directory / FINGERPRINT_NAME).read_text(encoding="utf-8"))
    files = {name: sha256(file) for name, file in files_in(directory).items() if name not in WITHOUT_CHECKSUM}
    write_fingerprint(directory, {**saved, "versions": versions(), "files": files})


def write_fingerprint(directory: Path, fingerprint: dict) -> None:
    """Write the fingerprint of a repository, one key on each line."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fingerprint.items())
    (directory / FINGERPRINT_NAME).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def verify_repository(repository: str, revision: str | None = None) -> list[str]:
    """Compare a repository with its fingerprint: checksums, token ids, vectors. Code in the repository is not run.

    A file without a checksum is a difference too, unless it is one of those that a card or a run adds.

    Returns:
        One line for each comparison.

    Raises:
        UserError: something differs or cannot be read; all differences are in one line.

    Example:
        `verify_repository("runs/quickstart/best")`
    """
    directory = local_directory(repository, revision)
    refuse_run_or_adapter(directory, repository)
    if unread := unreadable_directories(directory):
        raise UserError(f"{repository} cannot be verified: {'; '.join(unread)}")
    fingerprint = read_fingerprint(directory, repository)
    checksums = fingerprint.get("files", {})
    problems = differing_files(directory, checksums)
    if checksums:
        problems += added_files(directory, {*checksums, *WITHOUT_CHECKSUM})
    else:
        problems += unchecked_formats(directory, checksums)
    lines = [f"files: {len(checksums)} checksums match the fingerprint" if checksums else NO_CHECKSUMS]
    try:
        if not is_published(str(directory)):
            raise UserError("it is not a model of the zoo")
        model = load_checkpoint(str(directory))
        with library_errors("{error}"):
            lines += model.verify(checkpoint_tokenizer(model, repository))
    except UserError as error:
        problems.append(str(error))
    if problems:
        raise UserError(f"{repository} does not match its fingerprint: {'; '.join(problems)}")
    return lines


def unchecked_formats(directory: Path, checksums: dict[str, str]) -> list[str]:
    """Return a phrase for each file in another format that has no checksum: it may be of other weights.

    `save_pretrained` leaves such files when it saves a changed model in the directory of an export.
    """
    way_out = "it may be of other weights; delete it and export again"
    names = (name for name in files_in(directory) if name.startswith(tuple(f"{folder}/" for folder in FORMATS)))
    return [f"{name} has no checksum: {way_out}" for name in names if name not in checksums]


def _has_rows_of_numbers(value: object) -> bool:
    rows = value if isinstance(value, list) else [None]
    return all(
        isinstance(row, list) and row and all(isinstance(number, int | float) for number in row) for row in rows
    )


def read_fingerprint(directory: Path, repository: str) -> dict:
    """Read the fingerprint of a repository."""
    path = directory / FINGERPRINT_NAME
    if not path.is_file():
        raise UserError(
            f"{repository} has no {FINGERPRINT_NAME}: it is not a model of the zoo, or other code saved it; publish "
            "it again"
        )
    fingerprint = read_json(path)
    if missing := {"sentences", "token_ids", "embeddings"} - fingerprint.keys():
        raise UserError(f"{path} has no {', '.join(sorted(missing))}")
    sentences, *rows = (fingerprint[name] for name in ("sentences", "token_ids", "embeddings"))
    texts = isinstance(sentences, list) and all(isinstance(sentence, str) for sentence in sentences)
    if not texts or not all(map(_has_rows_of_numbers, rows)) or {len(sentences)} != {len(row) for row in rows}:
        raise UserError(f"{path}: expected texts as sentences, and for each numbers as token_ids and embeddings")
    if not isinstance(fingerprint.get("files", {}), dict):
        raise UserError(f"{path}: files must map file names to checksums")
    return fingerprint
