"""The quickstart: make a small English world, train a small BERT on it, then unsupervised SimCSE."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
from accelerate import PartialState
from transformers import PreTrainedTokenizerFast

from csezoo.modeling import masked_language_modeling
from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..errors import UserError
from ..evaluation.encoders import load_encoder, plain_encoder
from ..evaluation.report import format_table
from ..evaluation.sentence_vectors import Encode
from ..evaluation.suites import evaluate_tasks
from ..evaluation.tasks.sts import load_pairs_file, unit_vectors
from ..files import locked, remove, replace_directory
from ..loop.distributed.seeds import best_directory, claim, clear, seeds_locked
from ..loop.runs import load_lines, run_recipe
from ..recipes import Recipe, load_recipe
from . import base, words, world
from .base import train_base
from .world import make_world, write_world

logger = logging.getLogger(__name__)


def quickstart(overrides: dict[str, object]) -> None:
    """Write the world, train the base model, train the recipe `quickstart`, and print scores before and after.

    Besides the usual files, the run directory contains `world/` (sentences, graded pairs, triplets) and `base/`
    (tokenizer and masked language model). They are reused if the same code made them from the same seed.

    Args:
        overrides: keys of the recipe. The run's first seed is also the seed of the world and the base model.
    """
    recipe = load_recipe("quickstart", overrides)
    output = Path(recipe.output_dir or "runs/quickstart")
    recipe.output_dir = str(output)
    world_directory, base_directory = output / "world", output / "base"
    recipe.train_file = recipe.train_file or str(world_directory / "train.txt")
    recipe.base_model = recipe.base_model or str(base_directory.absolute())
    recipe.dev_file = recipe.dev_file or str(world_directory / "dev.csv")
    recipe.test_file = recipe.test_file or str(world_directory / "test.csv")
    state = PartialState()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO if state.is_main_process else logging.ERROR)
    with locked(output) if state.is_main_process else nullcontext():
        _run(recipe, output, state)


def _run(recipe: Recipe, output: Path, state: PartialState) -> None:
    world_directory, base_directory = output / "world", output / "base"
    if state.is_main_process:
        with seeds_locked(output):
            seed = claim(output, recipe)[0]
        cause = {"seed": seed, "code": _code(words, world)}
        changed = _once(world_directory, cause, lambda directory: write_world(make_world(seed=seed), directory))
        sentences = (world_directory / "train.txt").read_text(encoding="utf-8").splitlines()
        cause = {"seed": seed, "code": _code(words, world, base, masked_language_modeling)}
        changed |= _once(base_directory, cause, lambda directory: train_base(sentences, directory, seed=seed))
        if changed:  # a run with another world or base model must not be resumed
            clear(output)
    state.wait_for_everyone()
    results = run_recipe(recipe, show=False)
    if state.is_main_process:
        print(report(recipe, best_directory(output, results)), flush=True)


def _once(directory: Path, cause: dict[str, object], make: Callable[[Path], None]) -> bool:
    """Make a directory unless the same cause already made it. Return whether it was made."""
    marker = directory / "made_from.json"
    if marker.is_file() and json.loads(marker.read_text(encoding="utf-8")) == cause:
        logger.info("%s is there and unchanged", directory)
        return False
    if directory.exists() and not marker.is_file():
        raise UserError(f"{directory} exists and was not made by the quickstart; give another --output_dir")
    partial = directory.with_name(f"{directory.name}.partial")
    remove(partial)
    partial.mkdir(parents=True)
    logger.info("making %s", directory)
    make(partial)
    (partial / marker.name).write_text(json.dumps(cause) + "\n", encoding="utf-8")
    replace_directory(partial, directory)
    return True


def _code(*modules: ModuleType) -> str:
    return hashlib.sha256("".join(map(inspect.getsource, modules)).encode()).hexdigest()


def report(recipe: Recipe, best: Path) -> str:
    """Return the printed report: scores before and after, neighbours of five sentences, how to load the model."""
    task = load_pairs_file(cast(str, recipe.test_file))
    rows = []
    for pooling in ("cls", "mean"):
        encoder, tokenizer = plain_encoder(cast(str, recipe.base_model), pooling)
        rows.append((f"untrained, {pooling}", evaluate_tasks(_texts_only(encoder, tokenizer), [task])))
    encode, _ = load_encoder(str(best))
    rows.append(("trained, SimCSE", evaluate_tasks(encode, [task])))
    return "\n".join(
        [
            "",
            f"Spearman (x 100) on {len(task.pairs)} graded pairs of sentences about events that training never saw:",
            format_table(rows),
            "",
            "Nearest neighbours:",
            *neighbours(encode, sorted({sentence for pair in task.pairs for sentence in pair})),
            "",
            f"The finished Hub repository: {best}",
            *load_lines(best),
        ]
    )


def _texts_only(encoder: SentenceEncoderModel, tokenizer: PreTrainedTokenizerFast) -> Encode:
    return lambda texts: encoder.encode(texts, tokenizer, batch_size=128)


def neighbours(encode: Encode, sentences: list[str], queries: int = 5, nearest: int = 2) -> list[str]:
    """Return lines with some of the sentences and, for each, the nearest other sentences by cosine."""
    vectors = unit_vectors(encode(sentences))
    lines = []
    for query in range(0, len(sentences), -(-len(sentences) // queries)):
        cosines = vectors @ vectors[query]
        cosines[query] = -np.inf
        lines.append(f"  {sentences[query]}")
        lines += [f"    {cosines[i]:.2f}  {sentences[i]}" for i in np.argsort(-cosines)[:nearest]]
    return lines
