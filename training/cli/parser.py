"""The `csezoo` command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable

from ..errors import UserError
from . import benchmark, browsing, embedding, evaluation, pictures, publishing


def main(arguments: list[str] | None = None) -> None:
    """Parse and run; an error a user caused ends it with one line and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["train"]:  # its keys are the recipe's, not argparse's
            from ..train import main as train_main

            train_main(arguments[1:])
        else:
            _run(arguments)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader has what it wanted, as in `csezoo recipes | head -2`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit


def _run(arguments: list[str]) -> None:
    parser = build_parser()
    options, keys = parser.parse_known_args(arguments)
    if keys and not options.takes_keys:
        parser.error(f"unrecognized arguments: {' '.join(keys)}")
    options.keys = keys
    options.command = shlex.join(["csezoo", *arguments])
    options.run(options)


def build_parser() -> argparse.ArgumentParser:
    """All sub-commands and their options, each with an example."""
    parser = argparse.ArgumentParser(prog="csezoo", description="A model zoo of contrastive sentence embeddings.")
    parser.set_defaults(takes_keys=False)  # where a recipe's keys may follow
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable | None, summary: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary, epilog=f"example: {example}")
        added.set_defaults(run=run)
        return added

    command(
        "train",
        None,
        "train a recipe on one process (accelerate launch -m csezoo.training.train for more)",
        "csezoo train simcse-bert-base-uncased --train_file sentences.txt --eval_data none",
    )
    for group in (evaluation, embedding, benchmark, pictures, publishing, browsing):
        group.add_commands(command)
    return parser
