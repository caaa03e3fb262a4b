"""The `csezoo` command."""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import UserError, exit_with_one_line
from . import benchmark, browsing, embedding, evaluation, new_method, pairs, pictures, publishing, reproducing, tuning

# In the order of `csezoo --help`.
GROUPS = (evaluation, reproducing, tuning, embedding, pairs, benchmark, pictures, publishing, browsing, new_method)


class Store(argparse.Action):
    """Store the values of an option. Where it takes any number, a second one adds its values."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        before = getattr(namespace, self.dest, self.default)
        again = self.option_strings and self.nargs == "+" and before is not self.default
        setattr(namespace, self.dest, [*before, *values] if again else values)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage above it."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.register("action", None, Store)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def main(arguments: list[str] | None = None) -> None:
    """Parse the arguments and run the command, as `exit_with_one_line` does."""
    arguments = sys.argv[1:] if arguments is None else arguments
    with exit_with_one_line():
        if arguments[:1] == ["train"]:  # takes keys of a recipe, which argparse does not know
            from ..train import run as train

            train(arguments[1:])
        else:
            _run(arguments)


def _run(arguments: list[str]) -> None:
    parser = build_parser()
    options, keys = parser.parse_known_args(arguments)
    if keys and not options.takes_keys:
        parser.error(f"unrecognized arguments: {' '.join(keys)}")
    for name, value in vars(options).items():
        if "" in (value if isinstance(value, list) else [value]) and name != "prefixes":
            raise UserError(f"{name}: the value is empty; give one, or leave the option out")
    options.keys = keys
    options.command = shlex.join(["csezoo", *arguments])
    options.run(options)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all sub-commands, each with its options and an example."""
    parser = Parser(prog="csezoo", description="A model zoo of contrastive sentence embeddings.")
    version = f"csezoo {importlib.metadata.version('csezoo')}"
    parser.add_argument("--version", action="version", version=version, help="show the version of csezoo and exit")
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
    for group in GROUPS:
        group.add_commands(command)
    return parser
