"""Benchmarks against the trainer of sentence-transformers: SimCSE with its own loss, and any method with the zoo's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

import datasets

from ..data.texts import load_sentences
from ..environment import default_device, peak_device_bytes, peak_rss_bytes, quiet_transformers
from ..errors import UserError
from ..loop.precision import choose_precision
from ..recipes import Recipe
from .encoding import sentence_transformer
from .race import race
from .training import Updates


def benchmark_trainer(recipe: Recipe, *, steps: int = 25, repeats: int = 5) -> dict[str, object]:
    """Time unsupervised SimCSE on the first sentences of the data, with csezoo and with sentence-transformers.

    Both train the same base model on `steps` batches of the same sentences, where each sentence is its own positive,
    with InfoNCE at the recipe's temperature and AdamW. Loading the model is not timed. csezoo tokenises the texts
    before the clock starts, sentence-transformers batch by batch while it runs. Peak memory is measured in a new
    process for each.

    Returns:
        The figures of `race`; `speedup`, our sentences per second divided by theirs; `sentences per second` and `peak
        bytes` of both, of GPU memory if there is a GPU.
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
    settings = {name: getattr(recipe, name) for name in ("batch_size", "max_length", "length_window")}
    return {
        **settings,
        "precision": precision,
        "steps": steps,
        **figures,
        "speedup": figures["median"]["usual"] / figures["median"]["ours"],
        "sentences per second": {name: sentences / median for name, median in figures["median"].items()},
        "peak bytes": {name: peak_of(name, recipe, steps) for name in CONTENDERS},
    }


def benchmark_losses(recipe: Recipe, *, steps: int = 5, repeats: int = 5) -> dict[str, object]:
    """Time updates of a method in `SentenceTransformerTrainer`, with its loss, and in the zoo's own loop.

    Both make `steps` updates on sentences of the recipe's data, with the recipe's batch size, precision and learning
    rate. The trainer is built before, and tokenises while the clock runs.

    Returns:
        The figures of `race`, where `ratio` is the time in the trainer divided by that in the own loop; the settings.
    """
    if recipe.model.get("prompts"):
        raise UserError("benchmark losses: a SentenceTransformer has no template; give a recipe without prompts")
    datasets.disable_progress_bars()
    # The trainer has no batches of similar length.
    recipe = replace(recipe, max_train_sentences=steps * recipe.batch_size, length_window=0)
    updates = Updates(recipe, steps)
    recipe = replace(updates.recipe, mixed_precision=updates.accelerator.mixed_precision)
    with TemporaryDirectory() as directory:
        train = prepare_losses(recipe, steps, directory)
        train()
        updates.run()  # the first run of each is the slowest
        figures = race(train, updates.run, repeats=repeats)
    return {**updates.settings(), **figures}


def prepare_usual(recipe: Recipe, steps: int) -> Callable[[], None]:
    """Return a function that trains the same with sentence-transformers."""
    model = sentence_transformer(str(recipe.base_model), recipe.model.get("pooling", "cls"), recipe.max_length)
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    texts = load_sentences(recipe)["0"]
    rows = datasets.Dataset.from_dict({"anchor": texts, "positive": texts})

    def run() -> None:
        with TemporaryDirectory() as directory:
            arguments = _arguments(recipe, steps, directory, pin_memory=default_device().type == "cuda")
            loss = MultipleNegativesRankingLoss(model, scale=1 / recipe.model.get("temperature", 0.05))
            SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss).train()

    return run


def prepare_losses(recipe: Recipe, steps: int, directory: str) -> Callable[[], object]:
    """Return a function that trains with the method's loss in a `SentenceTransformerTrainer`, built before."""
    model = sentence_transformer(str(recipe.base_model), recipe.model.get("pooling", "cls"), recipe.max_length)
    from sentence_transformers import SentenceTransformerTrainer

    from ..trainers.binding import REFUSED
    from ..trainers.zoo_loss import ZooLoss

    keys = {key: value for key, value in recipe.model.items() if key not in REFUSED}
    loss = ZooLoss(model, recipe.method, generator=recipe.generator, **keys)
    rows = datasets.Dataset.from_dict({"text": load_sentences(recipe)["0"]})
    arguments = _arguments(recipe, steps, directory, pin_memory=False)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss)
    trainer.remove_callback(trainer.model_card_callback_class)  # it encodes examples, once in a training
    return trainer.train


def _arguments(recipe: Recipe, steps: int, directory: str, *, pin_memory: bool) -> Any:
    """Return the arguments of a trainer that makes updates as a recipe does, and no more."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    return SentenceTransformerTrainingArguments(
        directory,
        max_steps=steps,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        gradient_accumulation_steps=recipe.gradient_accumulation_steps,
        max_grad_norm=recipe.max_grad_norm,
        bf16=recipe.mixed_precision == "bf16",
        fp16=recipe.mixed_precision == "fp16",
        dataloader_pin_memory=pin_memory,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


# By name, a function that prepares everything and returns one that trains.
CONTENDERS: dict[str, Callable[[Recipe, int], Callable[[], None]]] = {
    "ours": lambda recipe, steps: Updates(recipe, steps).run,
    "usual": prepare_usual,
}


def peak_of(name: str, recipe: Recipe, steps: int) -> int:
    """Return the peak memory of a new process that prepares and trains."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_train_and_measure, name, recipe, steps).result()


def _train_and_measure(name: str, recipe: Recipe, steps: int) -> int:
    quiet_transformers()
    CONTENDERS[name](recipe, steps)()
    return peak_device_bytes(default_device()) or peak_rss_bytes()
