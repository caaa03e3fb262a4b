"""The quickstart: make a small English world, train a small BERT on it, then encoders with and without labels."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

from csezoo.modeling.contrastive import masked_language_modeling

from ..environment import show_log
from ..errors import UserError
from ..files import locked, remove, replace_directory
from ..loop.distributed.hosts import wait_for_all
from ..loop.distributed.launch import join_processes
from ..loop.run_directories import best_directory, claim_run, clear, is_begun, seeds_locked
from ..loop.runs import refuse_inputs, run_recipe
from ..recipes import FREE_KEYS, QUICKSTARTS, Recipe, load_recipe
from . import base, words, world
from .base import train_base
from .report import PICTURE, Trained, report
from .world import make_world, write_world

logger = logging.getLogger(__name__)
MARKER = "made_from.json"  # in a directory that the quickstart made
LABELLED, UNLABELLED = QUICKSTARTS
# Keys of the run with labels that the run without labels takes over.
SHARED = (FREE_KEYS - {"recipe", "output_dir"}) | {"seeds", "max_steps", "mixed_precision", "base_model"}
SHARED |= {"dev_file", "test_file"}


def quickstart(name: str, overrides: dict[str, object], **sizes: int) -> None:
    """Write the world, train the base model and the recipe, and print scores and neighbours before and after.

    Besides the usual files, the run directory contains `world/` (sentences, graded pairs, triplets) and `base/`
    (tokenizer and masked language model). They are reused if the same code made them from the same seed. The recipe
    with labels also trains the one without, in `simcse/`, for comparison.

    Args:
        name: `quickstart`, which learns from labels, or `quickstart-simcse`, which learns without.
        overrides: keys of the recipe. The run's first seed is also the seed of the world and the base model.
        sizes: of the world, see `make_world`.
    """
    recipe = load_recipe(name, overrides)
    output = Path(recipe.output_dir or f"runs/{name}")
    refuse_inputs(recipe, output)  # before `_prepare` may delete a run
    recipes = [_with_files(recipe, output, output)]
    if name == LABELLED:
        shared = {key: value for key, value in overrides.items() if key in SHARED}
        recipes.insert(0, _with_files(load_recipe(UNLABELLED, shared), output, output / "simcse"))
    state = join_processes()
    main = state.is_main_process
    show_log(main=main)
    with locked(output) if main else nullcontext():
        if main:
            _prepare(recipe, output, sizes)
        wait_for_all()
        trained: list[Trained] = []
        for one in recipes:
            logger.info("training %s in %s", one.method, one.output_dir)
            results = run_recipe(one, show=False, another=one is not recipes[-1])
            trained.append(Trained(one, results, best_directory(Path(one.output_dir or ""), results)))
        if main:
            logger.info("comparing all rows on the test pairs")
            print(report(trained, output), flush=True)


def _with_files(recipe: Recipe, output: Path, run: Path) -> Recipe:
    """Fill in the files of the world and the base model where the recipe has none."""
    made = output / "world"
    recipe.output_dir = str(run)
    recipe.base_model = recipe.base_model or str((output / "base").absolute())
    if recipe.text_columns and not recipe.dataset:
        recipe.train_file = recipe.train_file or str(made / "nli_triplets.csv")
    if recipe.nli_columns:
        recipe.nli_file = recipe.nli_file or str(made / "nli_triplets.csv")
    recipe.train_file = recipe.train_file or (None if recipe.dataset else str(made / "train.txt"))
    recipe.show_sentences = recipe.show_sentences or not (recipe.dev_file or recipe.test_file)  # no one's own
    recipe.dev_file = recipe.dev_file or str(made / "dev.csv")
    recipe.test_file = recipe.test_file or str(made / "test.csv")
    return recipe


def _prepare(recipe: Recipe, output: Path, sizes: dict[str, int]) -> None:
    """Make the world and the base model, unless they are there."""
    if (output / "simcse").exists() and not (output / "recipe.yaml").is_file():
        raise _foreign(output / "simcse")
    with seeds_locked(output):
        seed = claim_run(output, recipe)[0]
    of_world: dict[str, object] = {"seed": seed, "code": _code(words, world), **sizes}
    of_base = {**of_world, "code": _code(words, world, base, masked_language_modeling)}
    has_world, has_base = _is_made(output / "world", of_world), _is_made(output / "base", of_base)
    if not (has_world and has_base):
        if not recipe.overwrite and (is_begun(output) or is_begun(output / "simcse")):
            raise UserError(
                f"{output} was trained on a world or a base model that is gone or was made by other code; choose "
                "another --output_dir, or use --overwrite to start again"
            )
        # A run with another world or base model must not be resumed. It is removed before they are made, so that no
        # kill can leave it beside them.
        remove(output / "simcse")
        remove(output / PICTURE)
        clear(output)
    if not has_world:
        _make(output / "world", of_world, lambda directory: write_world(make_world(seed=seed, **sizes), directory))
    if not has_base:
        sentences = (output / "world" / "train.txt").read_text(encoding="utf-8").splitlines()
        _make(output / "base", of_base, lambda directory: train_base(sentences, directory, seed=seed))


def _is_made(directory: Path, cause: dict[str, object]) -> bool:
    """Return whether this cause made a directory."""
    marker = directory / MARKER
    if directory.exists() and not marker.is_file():
        raise _foreign(directory)
    made = marker.is_file() and json.loads(marker.read_text(encoding="utf-8")) == cause
    if made:
        logger.info("%s exists and is unchanged", directory)
    return made


def _foreign(directory: Path) -> UserError:
    return UserError(f"{directory} exists and was not made by the quickstart; give another --output_dir")


def _make(directory: Path, cause: dict[str, object], make: Callable[[Path], None]) -> None:
    """Make a directory, with its cause in it: complete, or as it was before."""
    partial = directory.with_name(f"{directory.name}.partial")
    remove(partial)
    partial.mkdir(parents=True)
    logger.info("making %s", directory)
    make(partial)
    (partial / MARKER).write_text(json.dumps(cause) + "\n", encoding="utf-8")
    replace_directory(partial, directory)


def _code(*modules: ModuleType) -> str:
    return hashlib.sha256("".join(map(inspect.getsource, modules)).encode()).hexdigest()
