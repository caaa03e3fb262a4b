"""What a run's numbers depend on, recorded in its checkpoints: it goes on only where all of it is as it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

import csezoo.modeling

from ..environment import versions
from ..evaluation.tasks.sts import PairTask
from ..hub import sha256
from ..recipes import Recipe, deciding_keys
from .precision import precision_of

# The code that decides a run's numbers: all of `modeling`, and of `training` what a batch and an update go through.
CODE: tuple[str, ...] = ("data/*.py", "loading/*.py", "evaluation/tasks/sts.py")
CODE += ("loop/building.py", "loop/optimizers.py", "loop/progress.py", "loop/run_data.py", "loop/training_loop.py")
# A checkpoint with another of these was not written by this run.
IDENTITY = ("recipe", "seed")


def origin(
    recipe: Recipe, seed: int, tokenizer: PreTrainedTokenizerBase, accelerator: Accelerator, dev: PairTask | None
) -> dict[str, object]:
    """Everything that must be the same where a run goes on, by the name an error gives it.

    Files and the tokenizer are known by their contents, wherever they lie and whenever they were touched; data sets of
    the Hub by the revision that the recipe gives.
    """
    keys = deciding_keys(recipe)
    libraries = {name: versions()[name] for name in ("csezoo", "torch", "transformers", "tokenizers")}
    files = {key: Path(str(keys[key] or "")) for key in ("train_file", "nli_file")}
    return {
        "recipe": hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest(),
        "seed": seed,
        "processes": accelerator.num_processes,
        "precision": precision_of(accelerator),
        "code": code_sha256(),
        "tokenizer": tokenizer_sha256(tokenizer),
        **libraries,
        **{key: sha256(file) for key, file in files.items() if file.is_file()},
        "dev pairs": dev.receipt()["sha256"] if dev else None,
    }


def code_sha256() -> str:
    """Checksum of the code that decides a run's numbers; that of cards, pictures and publishing is not in it."""
    training = Path(__file__).parents[1]
    files = [*Path(csezoo.modeling.__file__).parent.glob("*.py")]
    files += [file for pattern in CODE for file in training.glob(pattern)]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name} {sha256(file)}\n".encode())
    return digest.hexdigest()


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Checksum of how a tokenizer cuts a text into word pieces; truncation and padding are of its last call."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
