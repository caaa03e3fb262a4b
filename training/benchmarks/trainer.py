"""Benchmark of training against the sentence-transformers trainer: same model, sentences, loss, batch, precision."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any, cast

import datasets
import torch

from ..data.texts import load_sentences
from ..environment import default_device, peak_device_bytes, peak_rss_bytes, quiet_transformers
from ..errors import UserError
from ..loop.precision import choose_precision
from ..recipes import Recipe
from .encoding import sentence_transformer
from .race import machine, race
from .training import Updates


def benchmark_trainer(recipe: Recipe, *, steps: int = 25, repeats: int = 5) -> dict[str, object]:
    """Time unsupervised SimCSE on the first sentences of the data, with csezoo and with sentence-transformers.

    Both train the same base model on `steps` batches of the same sentences, where each sentence is its own positive,
    with InfoNCE at the recipe's temperature and AdamW. Loading the model is not timed. csezoo tokenises the texts
    before the clock starts, sentence-transformers batch by batch while it runs. Peak memory is measured in a new
    process for each.

    Args:
        recipe: a recipe of unsupervised SimCSE. The values worth varying are `length_window` and `max_length`.
        steps: batches.
        repeats: how often each side is timed.

    Returns:
        The figures of `race`; `speedup`, our sentences per second divided by theirs; `sentences per second` and `peak
        bytes` of both, of GPU memory if there is a GPU; the machine.

    Raises:
        UserError: the recipe has another method, a projection, a prompt or accumulated batches, or
            sentence-transformers is not installed.
    """
    different = recipe.method != "simcse" or recipe.gradient_accumulation_steps > 1
    if different or any(recipe.model.get(key, "none") != "none" for key in ("projection", "prompts")):
        raise UserError(
            "benchmark trainer: sentence-transformers can only train plain SimCSE; give a recipe of simcse and "
            "--projection none, without prompts and accumulation"
        )
    precision = choose_precision(recipe.mixed_precision) or "no"
    recipe = replace(recipe, max_train_sentences=steps * recipe.batch_size, mixed_precision=precision)
    datasets.disable_progress_bars()
    ours, usual = (prepare(recipe, steps) for prepare in CONTENDERS.values())
    figures = race(ours, usual, repeats=repeats)
    sentences = steps * recipe.batch_size
    return {
        "benchmark": "trainer",
        "batch_size": recipe.batch_size,
        "max_length": recipe.max_length,
        "length_window": recipe.length_window,
        "precision": precision,
        "steps": steps,
        **figures,
        "speedup": figures["median"]["usual"] / figures["median"]["ours"],
        "sentences per second": {name: sentences / median for name, median in figures["median"].items()},
        "peak bytes": {name: peak_of(name, recipe, steps) for name in CONTENDERS},
        "machine": machine(),
    }


def prepare_ours(recipe: Recipe, steps: int) -> Callable[[], None]:
    """Return a function that trains with csezoo; everything else is done before."""
    return Updates(recipe, steps).run


def prepare_usual(recipe: Recipe, steps: int) -> Callable[[], None]:
    """Return a function that trains the same with sentence-transformers."""
    base_model = cast(str, recipe.base_model)  # not None: prepare_ours has built a model from it
    model = sentence_transformer(base_model, recipe.model.get("pooling", "cls"), recipe.max_length)
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    temperature = recipe.model.get("temperature", 0.05)
    texts = load_sentences(recipe)["0"]
    rows = datasets.Dataset.from_dict({"anchor": texts, "positive": texts})

    def run() -> None:
        with TemporaryDirectory() as directory:
            options = {"bf16": recipe.mixed_precision == "bf16", "dataloader_pin_memory": torch.cuda.is_available()}
            arguments = trainer_arguments(recipe, steps, directory, **options)
            loss = MultipleNegativesRankingLoss(model, scale=1 / temperature)
            SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss).train()

    return run


def trainer_arguments(recipe: Recipe, steps: int, directory: str, **options: Any) -> Any:
    """Return the arguments of a `SentenceTransformerTrainer` that makes updates as a recipe does, and no more.

    Args:
        recipe: whose batch size, rate and clipping are used.
        steps: updates.
        directory: for the trainer.
        options: further arguments.
    """
    from sentence_transformers import SentenceTransformerTrainingArguments

    return SentenceTransformerTrainingArguments(
        directory,
        max_steps=steps,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        max_grad_norm=recipe.max_grad_norm,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **options,
    )


CONTENDERS = {"ours": prepare_ours, "usual": prepare_usual}


def peak_of(name: str, recipe: Recipe, steps: int) -> int:
    """Return the peak memory of a new process that prepares and trains."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_train_and_measure, name, recipe, steps).result()


def _train_and_measure(name: str, recipe: Recipe, steps: int) -> int:
    quiet_transformers()
    CONTENDERS[name](recipe, steps)()
    return peak_device_bytes(default_device()) or peak_rss_bytes()
