"""`accelerate launch -m csezoo.training.train RECIPE [--key value …]`: train a recipe."""

from __future__ import annotations

import importlib
import sys

from .environment import keep_freed_memory
from .errors import UserError, exit_with_one_line
from .recipes import QUICKSTARTS, load_recipe, parse_overrides, recipe_names
from .recipes.help import describe_keys, describe_recipe
from .recipes.reading import coerce_keys, keys_without_effect, merged_values

USAGE = """usage: accelerate launch -m csezoo.training.train RECIPE [--key value ...]

Train a recipe of the zoo, or one from a YAML file. The run directory then contains best/, a complete Hub repository.

example: accelerate launch -m csezoo.training.train simcse-bert-base-uncased --train_file sentences.txt --seeds 1 2 3

"""
OF_ALL = """recipes: {recipes}

RECIPE --help shows what a recipe sets and why, and the keys of its method (pooling, temperature and others).
Keys that every recipe has, with their defaults:

{keys}"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, as `exit_with_one_line` does."""
    with exit_with_one_line():
        run(sys.argv[1:] if arguments is None else arguments)


def run(arguments: list[str]) -> None:
    """Train, or print the help."""
    if {"-h", "--help"} & set(arguments):
        words = [argument for argument in arguments if argument not in ("-h", "--help")]
        if not words or words[0].startswith("-"):
            print(USAGE + OF_ALL.format(recipes=", ".join(recipe_names()), keys=describe_keys()))
        else:  # what the named recipe sets, and the keys of its method
            print(USAGE + describe_recipe(words[0], parse_overrides(words[1:])))
            print("\nAll other keys: csezoo train --help")
        return
    if not arguments:
        raise UserError("give a recipe (`csezoo recipes` lists them) or a YAML file; --help shows the keys")
    name, overrides = arguments[0], parse_overrides(arguments[1:])
    coerce_keys(merged_values(name, overrides))  # before torch is imported, which takes seconds
    if name in QUICKSTARTS:
        for library in ("torch", "transformers", "csezoo.modeling", "csezoo.training.loop.runs"):  # takes many seconds
            print(f"loading {library}", file=sys.stderr, flush=True)
            importlib.import_module(library)
        from .quickstart.run import quickstart

        quickstart(name, overrides)
    else:
        recipe = load_recipe(name, overrides)
        for key, other in keys_without_effect(recipe, overrides).items():
            print(f"{key} has no effect without {other}", file=sys.stderr, flush=True)
        from .loop.runs import run_recipe

        run_recipe(recipe)


if __name__ == "__main__":
    keep_freed_memory()
    main()
