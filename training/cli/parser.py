"""The `csezoo` command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable

from ..errors import OutOfTimeError, UserError
from . import benchmark, browsing, embedding, evaluation, pictures, publishing


def main(arguments: list[str] | None = None) -> None:
    """Parse the arguments and run the command. A `UserError` ends it with one line and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["train"]:  # takes keys of a recipe, which argparse does not know
            from ..train import main as train_main

            train_main(arguments[1:])
        else:
            _run(arguments)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, OutOfTimeError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(2)  # an exit would wait for the threads that wait for the Hub
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader has stopped, as in `csezoo recipes | head -2`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail


def _run(arguments: list[str]) -> None:
    parser = build_parser()
    options, keys = parser.parse_known_args(arguments)
    if keys and not options.takes_keys:
        parser.error(f"unrecognized arguments: {' '.join(keys)}")
    options.keys = keys
    options.command = shlex.join(["csezoo", *arguments])
    options.run(options)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all sub-commands, each with its options and an example."""
    parser = argparse.ArgumentParser(prog="csezoo", description="A model zoo of contrastive sentence embeddings.")
    parser.set_defaults(takes_keys=False)  # True for a command that also takes keys of a recipe
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable | None, summary: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary, epilog=f"example: {example}")
        added.set_defaults(run=run)
        return added

    command(
        "train",
        None,
        "train a recipe in one process (for several processes: accelerate launch -m csezoo.training.train)",
        "csezoo train simcse-bert-base-uncased --train_file sentences.txt --eval_data none",
    )
    for group in (evaluation, embedding, benchmark, pictures, publishing, browsing):
        group.add_commands(command)
    return parser
