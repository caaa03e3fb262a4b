"""What the sub-commands share. Each imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..errors import UserError, one_line

# Adds a sub-command: its name, the function that runs it on its options, a summary, an example.
Command = Callable[[str, Callable | None, str, str], argparse.ArgumentParser]
SENTEVAL: dict[str, Any] = {"default": "hub", "help": "hub (default) or a directory in SentEval's layout"}


def add_encoder_options(added: argparse.ArgumentParser) -> None:
    """The model, and how its texts are encoded: as of `load_encoder`."""
    models = "directory or Hub id: of the zoo, of transformers (--pooling), of sentence-transformers"
    added.add_argument("model", metavar="MODEL", help=models)
    poolings = "for a plain transformers encoder: cls, mean, max, first_last_mean, last2_mean"
    added.add_argument("--pooling", help=poolings)
    added.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="of the weights")
    added.add_argument("--batch_size", type=int, default=128, help="most texts a forward pass (128)")


def check_out(out: str) -> None:
    """A file that cannot be written is better refused before the work than after it."""
    directory = Path(out).absolute().parent
    if not directory.is_dir():
        raise UserError(f"out: {Path(out).parent} is no directory")
    if Path(out).is_dir():
        raise UserError(f"out: {out} is a directory, give a file")
    try:
        TemporaryFile(dir=directory).close()
    except OSError as error:
        raise UserError(f"out: {out} cannot be written ({one_line(error)})") from error


def check_picture(out: str) -> None:
    """The same of a picture, which is a PNG."""
    if not out.endswith(".png"):
        raise UserError(f"out: {out} is no PNG file, give FILE.png")
    check_out(out)


def check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UserError(f"batch_size: {batch_size} must be at least 1")
