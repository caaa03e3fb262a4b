"""Training against the trainer of sentence-transformers: same model, sentences, loss, batch and precision."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import cast

import datasets
import torch

from ..data.texts import load_sentences
from ..environment import peak_device_bytes, peak_rss_bytes, quiet_transformers
from ..errors import UserError
from ..loop.precision import choose_precision
from ..recipes import Recipe
from .encoding import sentence_transformer
from .race import machine, race
from .training import Updates


def benchmark_trainer(recipe: Recipe, *, steps: int = 25, repeats: int = 5) -> dict[str, object]:
    """One pass of unsupervised SimCSE over the first sentences of the data, by this project and by the other.

    Both train the same base model on `steps` batches of the same sentences, anchor and positive the same, with InfoNCE
    of the recipe's temperature and AdamW; loading the model and, here, tokenising are before the clock starts
    (sentence-transformers tokenises batch by batch). Peak memory is of a process of its own each, all of it.

    Args:
        recipe: of SimCSE, unsupervised; `length_window` and `max_length` are what is worth comparing.
        steps: batches.
        repeats: turns.

    Returns:
        `race`'s figures; `speedup`, our sentences per second to theirs; `sentences per second` and `peak bytes` of
        both, the latter of the GPU's memory where there is one; the machine.

    Raises:
        UserError: another method, a projection or a prompt, or sentence-transformers is not installed.
    """
    different = recipe.method != "simcse" or recipe.gradient_accumulation_steps > 1
    if different or any(recipe.model.get(key, "none") != "none" for key in ("projection", "prompts")):
        raise UserError(
            "benchmark trainer: sentence-transformers has no other method than plain SimCSE: give a recipe of simcse "
            "and --projection none"
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
    """Our training, ready to run."""
    return Updates(recipe, steps).run


def prepare_usual(recipe: Recipe, steps: int) -> Callable[[], None]:
    """The other's training of the same, ready to run."""
    base_model = cast(str, recipe.base_model)  # our own was built from it
    model = sentence_transformer(base_model, recipe.model.get("pooling", "cls"), recipe.max_length)
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    temperature = recipe.model.get("temperature", 0.05)
    texts = load_sentences(recipe)["0"]
    rows = datasets.Dataset.from_dict({"anchor": texts, "positive": texts})

    def run() -> None:
        with TemporaryDirectory() as directory:
            arguments = Arguments(
                directory,
                max_steps=steps,
                per_device_train_batch_size=recipe.batch_size,
                learning_rate=recipe.learning_rate,
                max_grad_norm=recipe.max_grad_norm,
                bf16=recipe.mixed_precision == "bf16",
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                dataloader_pin_memory=torch.cuda.is_available(),
                disable_tqdm=True,
            )
            loss = MultipleNegativesRankingLoss(model, scale=1 / temperature)
            SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss).train()

    return run


CONTENDERS = {"ours": prepare_ours, "usual": prepare_usual}


def peak_of(name: str, recipe: Recipe, steps: int) -> int:
    """The most memory that a fresh process holds while it prepares and trains."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_train_and_measure, name, recipe, steps).result()


def _train_and_measure(name: str, recipe: Recipe, steps: int) -> int:
    quiet_transformers()
    CONTENDERS[name](recipe, steps)()
    return peak_device_bytes() or peak_rss_bytes()
