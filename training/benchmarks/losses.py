"""Benchmark of the losses for sentence-transformers: updates in its trainer against those of the zoo's own loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from tempfile import TemporaryDirectory

import datasets

from ..data.texts import load_sentences
from ..errors import UserError
from ..recipes import Recipe
from .encoding import sentence_transformer
from .race import machine, race
from .trainer import trainer_arguments
from .training import Updates


def benchmark_losses(recipe: Recipe, *, steps: int = 5, repeats: int = 5) -> dict[str, object]:
    """Time updates of a method in `SentenceTransformerTrainer`, with its loss, and in the zoo's own loop.

    Both make `steps` updates on sentences of the recipe's data, with the recipe's batch size, precision and learning
    rate. The trainer is built before, and tokenises while the clock runs.

    Args:
        recipe: of a method for single sentences, without a prompt.
        steps: updates of a turn.
        repeats: how often each side is timed.

    Returns:
        The figures of `race`, where `ratio` is the time in the trainer divided by that in the own loop; the settings;
        the machine.

    Raises:
        UserError: the recipe has a prompt, or sentence-transformers is not installed or lacks its pooling.
    """
    if recipe.model.get("prompts"):
        raise UserError("benchmark losses: a SentenceTransformer has no template; give a recipe without prompts")
    datasets.disable_progress_bars()
    # The trainer has no batches of similar length.
    recipe = replace(recipe, max_train_sentences=steps * recipe.batch_size, length_window=0)
    updates = Updates(recipe, steps)
    with TemporaryDirectory() as directory:
        train = training_in_trainer(updates.recipe, steps, directory, updates.accelerator.mixed_precision)
        train()
        updates.run()  # the first run of each is the slowest
        figures = race(train, updates.run, repeats=repeats)
    return {"benchmark": "losses", **updates.settings(), **figures, "machine": machine()}


def training_in_trainer(recipe: Recipe, steps: int, directory: str, precision: str) -> Callable[[], object]:
    """Return a function that makes the updates in a `SentenceTransformerTrainer`, which is built before.

    Args:
        recipe: as for `benchmark_losses`.
        steps: updates of a call.
        directory: for the trainer.
        precision: `no`, `bf16` or `fp16`.
    """
    model = sentence_transformer(str(recipe.base_model), recipe.model.get("pooling", "cls"), recipe.max_length)
    from sentence_transformers import SentenceTransformerTrainer

    from ..trainers.binding import REFUSED
    from ..trainers.losses import ZooLoss

    keys = {key: value for key, value in recipe.model.items() if key not in REFUSED}
    loss = ZooLoss(model, recipe.method, generator=recipe.generator, **keys)
    rows = datasets.Dataset.from_dict({"text": load_sentences(recipe)["0"]})

    arguments = trainer_arguments(
        recipe,
        steps,
        directory,
        gradient_accumulation_steps=recipe.gradient_accumulation_steps,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        dataloader_pin_memory=False,
    )
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss)
    trainer.remove_callback(trainer.model_card_callback_class)  # it encodes examples, once in a training
    return trainer.train
