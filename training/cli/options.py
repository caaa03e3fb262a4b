"""Options and checks that sub-commands share. Commands import heavy modules when they run: `--help` stays fast."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..errors import UserError, writing
from ..files import refuse_looping_link

# Adds a sub-command. Arguments: its name, the function that runs it, a summary, an example.
Command = Callable[[str, Callable | None, str, str], argparse.ArgumentParser]
DATA_HELP = "where to read the data: hub (default), or a directory in SentEval's layout"
SENTEVAL: dict[str, Any] = {"default": "hub", "metavar": "DIR", "help": DATA_HELP}


def whole(least: int = 1, most: int = 10**9) -> Callable[[str], int]:
    """Return a type of argparse: a whole number in this range."""

    def number(text: str) -> int:
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least} and at most {most:,}")
        return int(text)

    return number


def add_encoder_options(added: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a model and how it encodes texts, see `load_encoder`."""
    models = "directory or Hub id: a model of the zoo, of sentence-transformers, or of transformers with --pooling; "
    models += "or a text file of word vectors such as GloVe's; or the word bag-of-words"
    added.add_argument("model", metavar="MODEL", help=models)
    poolings = "pooling of a plain transformers encoder: cls, mean, max, first_last_mean, embeddings_last_mean, "
    poolings += "last2_mean, last, wk"
    added.add_argument("--pooling", help=poolings)
    dtypes = "precision of the weights (default: float32)"
    added.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help=dtypes)
    batch_size = "largest number of texts per forward pass (default: 128)"
    added.add_argument("--batch_size", type=whole(), default=128, help=batch_size)


def refuse_unwritable(out: str, option: str = "out") -> None:
    """Check that the file that an option names can be written, before the work whose results go into it."""
    directory = Path(out).absolute().parent
    if not directory.is_dir():
        raise UserError(f"{option}: {Path(out).parent} is not a directory; create it, or give another path")
    if Path(out).is_dir():
        raise UserError(f"{option}: {out} is a directory; give a file")
    if Path(out).exists() and not Path(out).is_file():  # writing would replace a device such as /dev/null
        raise UserError(f"{option}: {out} is not a regular file; give another path")
    with writing(option, out, "; give another path"):
        refuse_looping_link(Path(out))
        TemporaryFile(dir=directory).close()


def refuse_unwritable_picture(out: str, option: str = "out") -> None:
    """Check that a picture can be written; its name must end in `.png`."""
    if not out.endswith(".png"):
        raise UserError(f"{option}: {out} is not a PNG file; give FILE.png")
    refuse_unwritable(out, option)
