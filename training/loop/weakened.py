"""What an L2P-CSR run has learned to weaken in sentences of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_model

from ..errors import UserError
from ..pictures.weakened_tokens import WeakenedView
from ..recipes import Recipe, load_recipe
from .building import build
from .checkpoints import checkpoints


def weakened_tokens(run: str | Path, sentences: list[str], *, seed: int = 0) -> dict[str, list[WeakenedView]]:
    """The token masks that the newest checkpoint of a run would train on, were these sentences its next batch.

    As in training, with dropout; the sentences are each other's negatives.

    Args:
        run: a run directory; of several seeds the first one's is taken, unless it is `RUN/seed-N` itself.
        sentences: two or more.
        seed: of the masks' start and of dropout.

    Returns:
        Each sentence's views, tokens of a template included, padding not.

    Raises:
        UserError: no such run, none of L2P-CSR, one without token masks or without a checkpoint.
    """
    run, sentences = Path(run), list(dict.fromkeys(sentences))
    if len(sentences) < 2:
        raise UserError("sentences: give two different ones or more, they are each other's negatives")
    recipe = _recipe(run)
    built = build(recipe)
    model = built.model
    if not model.config.learns_token_masks:
        raise UserError(
            f"{run} has no token masks to draw: l2pcsr learns them, without weakening: noise and token_mask: false; "
            f"this is a run of {recipe.method}"
        )
    load_model(model, _newest_checkpoint(run, recipe) / "model.safetensors")
    rows = built.text_collator([{"0": sentence} for sentence in sentences])
    torch.manual_seed(seed)
    weakened = model.train().learned_token_masks(**rows)  # (K, B, V, T)
    views: dict[str, list[WeakenedView]] = {}
    for number, sentence in enumerate(sentences):
        views[sentence] = []
        for view, attended in enumerate(rows["attention_mask"][number].bool()):
            ids = rows["input_ids"][number, view, attended]
            tokens = [cast(str, built.tokenizer.decode([token])).strip() for token in ids]
            views[sentence].append(WeakenedView(tokens, weakened[:, number, view, attended].numpy()))
    return views


def _recipe(run: Path) -> Recipe:
    """A run's recipe; that of a seed's directory lies in its parent."""
    for directory in (run, run.parent) if run.name.startswith("seed-") else (run,):
        if (directory / "recipe.yaml").is_file():
            return load_recipe(str(directory / "recipe.yaml"))
    raise UserError(f"{run} is no run: it has no recipe.yaml, give the output_dir of a training command")


def _newest_checkpoint(run: Path, recipe: Recipe) -> Path:
    if len(recipe.seeds) > 1 and not run.name.startswith("seed-"):
        run = run / f"seed-{recipe.seeds[0]}"
    if not (written := checkpoints(run / "checkpoints", {})):
        raise UserError(f"{run} has no complete checkpoint yet: train it up to its first eval_steps")
    return written[-1]
