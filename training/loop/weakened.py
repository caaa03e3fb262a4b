"""Show which tokens of given sentences an L2P-CSR run weakens."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_model

from ..errors import UserError
from ..pictures.weakened_tokens import WeakenedView
from ..recipes import Recipe, load_recipe
from .building import build
from .checkpoints import RECEIPT, checkpoints, read_state, refuse_another_build
from .run_directories import seed_directory


def weakened_tokens(run: str | Path, sentences: list[str], *, seed: int = 0) -> dict[str, list[WeakenedView]]:
    """Return the token masks that the newest checkpoint of a run learns for a batch of these sentences.

    As in training, dropout is on and the sentences are each other's negatives.

    Args:
        run: a run directory. A run with several seeds uses its first seed; `RUN/seed-N` uses seed N.
        sentences: two or more different ones.
        seed: for the initial masks and for dropout.

    Returns:
        The views of each sentence, with the tokens of a template and without padding.

    Raises:
        UserError: there is no such run, it did not train L2P-CSR with token masks, it has no checkpoint, or its
            recipe, base model or tokenizer is not that of the checkpoint.
    """
    run, sentences = Path(run), list(dict.fromkeys(sentences))
    if len(sentences) < 2:
        raise UserError("sentences: give two or more different ones, which are each other's negatives")
    recipe = _recipe(run)
    built = build(recipe)
    model = built.model
    if not model.config.learns_token_masks:
        raise UserError(
            f"{run} has no token masks; give a run of l2pcsr that has neither weakening: noise nor token_mask: false "
            f"(this is a run of {recipe.method})"
        )
    of_seed = run if run.name.startswith("seed-") else seed_directory(run, recipe.seeds, recipe.seeds[0])
    if not (written := checkpoints(of_seed / "checkpoints", {})):
        raise UserError(f"{of_seed} has no complete checkpoint yet; train it for at least eval_steps updates")
    checkpoint = written[-1]
    refuse_another_build(checkpoint, recipe, read_state(checkpoint)[RECEIPT]["seed"], built)
    load_model(model, checkpoint / "model.safetensors")
    rows = built.collator(texts=True)([{"0": sentence} for sentence in sentences])
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
    """Read the recipe of a run. For the directory of one seed it is in the parent directory."""
    for directory in (run, run.parent) if run.name.startswith("seed-") else (run,):
        if (directory / "recipe.yaml").is_file():
            return load_recipe(str(directory / "recipe.yaml"))
    raise UserError(f"{run} is not a run: it has no recipe.yaml; give the output_dir of a training command")
