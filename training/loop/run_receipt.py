"""The receipt of a run: everything its numbers depend on. A run resumes only if none of it has changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

import csezoo.modeling

from ..data.teachers import shards_of
from ..environment import versions
from ..evaluation.tasks.sts import PairTask
from ..hub import sha256
from ..recipes import Recipe, deciding_keys
from .precision import precision_of

# The code that a run's numbers depend on, beside `modeling`: what batches and updates use.
CODE: tuple[str, ...] = ("data/*.py", "loading/*.py", "evaluation/tasks/sts.py")
CODE += ("loop/building.py", "loop/optimizers.py", "loop/progress.py", "loop/run_data.py", "loop/training_loop.py")
# A checkpoint in which one of these differs belongs to another run.
SAME_RUN = ("recipe", "seed")


def run_receipt(
    recipe: Recipe, seed: int, tokenizer: PreTrainedTokenizerBase, accelerator: Accelerator, dev: PairTask | None
) -> dict[str, object]:
    """Return everything that must not change before a run resumes, by the name that errors use.

    Files and the tokenizer are compared by content, not by path or time. Data sets of the Hub are compared by the
    revision in the recipe.
    """
    keys = deciding_keys(recipe)
    installed = versions()
    libraries = {name: installed[name] for name in ("csezoo", "torch", "transformers", "tokenizers")}
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
        **{f"teacher {directory}": _files_sha256(shards_of(directory)) for directory in recipe.teachers or []},
        "dev pairs": dev.receipt()["sha256"] if dev else None,
    }


def _files_sha256(files: list[str]) -> str:
    return hashlib.sha256("".join(sha256(Path(file)) for file in files).encode()).hexdigest()


def code_sha256() -> str:
    """Return a checksum of the code that a run's numbers depend on, without cards, pictures and publishing."""
    training = Path(__file__).parents[1]
    files = [*Path(csezoo.modeling.__file__).parent.glob("*.py")]
    files += [file for pattern in CODE for file in training.glob(pattern)]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name} {sha256(file)}\n".encode())
    return digest.hexdigest()


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a checksum of how a tokenizer splits texts.

    Truncation and padding are left out: a tokenizer keeps those of its last call.
    """
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
