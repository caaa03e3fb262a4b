"""The receipt of a run: everything its numbers depend on. A run resumes only if none of it has changed."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import PretrainedConfig

import csezoo.modeling
from csezoo.modeling import methods
from csezoo.modeling.contrastive.training_model import ForContrastiveLearning

from ..data.teachers import shards_of
from ..environment import versions
from ..errors import UserError, others
from ..evaluation.suites import Task
from ..hub import files_sha256, sha256
from ..loading.backbones import ABOUT_THE_FILE
from ..loading.tokenizers import special_tokens, tokenizer_sha256
from ..recipes import Recipe, deciding_keys
from ..recipes.keys import BASE_TEACHER
from .building import Build
from .precision import precision_of
from .run_data import RunData

# The code that a run's numbers depend on, beside `modeling`: what batches and updates use.
CODE: tuple[str, ...] = ("data/*.py", "loading/*.py", "evaluation/selection.py", "evaluation/metrics/sts/sts.py")
CODE += ("evaluation/tasks/sts.py", "evaluation/tasks/probing.py", "evaluation/tasks/transfer.py")
CODE += ("loop/best_model.py", "loop/building.py", "loop/optimizers.py", "loop/run_data.py", "loop/training_log.py")
CODE += ("loop/training_loop.py", "loop/served/*.py")
# A checkpoint in which one of these differs belongs to another run.
SAME_RUN = ("recipe", "seed")


def run_receipt(
    recipe: Recipe,
    seed: int,
    built: Build,
    data: RunData,
    accelerator: Accelerator,
    dev: Sequence[Task],
    tests: Sequence[Task],
) -> dict[str, object]:
    """Return everything that must not change before a run resumes, by the name that errors use.

    Files, rows, models and the tokenizer are compared by content, not by path or time. Only a stream of the Hub is
    compared by the revision in the recipe.

    Args:
        built: the training model before its first update, with the weights of the base model and the generator.
    """
    installed = versions()
    libraries = {name: installed[name] for name in ("csezoo", "torch", "transformers", "tokenizers")}
    directories = [vectors for vectors in recipe.teachers or [] if vectors != BASE_TEACHER]
    return {
        **build_receipt(recipe, seed, built),
        "processes": accelerator.num_processes,
        "device": accelerator.device.type,
        "precision": precision_of(accelerator),
        "layout": built.model.layout,
        "code": code_sha256(built.model),
        **data.checksums(),
        **({"dataset": files_sha256(data.streamed)} if data.streamed else {}),
        **libraries,
        **local_checksums(recipe, dev, tests),
        **{f"teacher {n}": files_sha256(shards_of(vectors)) for n, vectors in enumerate(directories, 1)},
    }


def local_checksums(recipe: Recipe, dev: Sequence[Task], tests: Sequence[Task]) -> dict[str, str | None]:
    """Return the checksums of the local training files of a recipe, and of its dev and test pairs."""
    keys = deciding_keys(recipe)
    files = {key: Path(str(keys[key] or "")) for key in ("train_file", "nli_file")}
    checksums = {key: sha256(file) for key, file in files.items() if file.is_file()}
    return {**checksums, "dev pairs": _tasks_sha256(dev), "test pairs": _tasks_sha256(tests)}


def refuse_changed_data(run: Path, receipt: dict[str, object], checksums: dict[str, str | None]) -> None:
    """Refuse to show a finished run, by its receipt, whose data have changed since."""
    if changed := [name for name, checksum in checksums.items() if receipt.get(name) != checksum]:
        raise UserError(
            f"{run} is finished, and was trained with {others(changed)}; choose another --output_dir, or use --force "
            "to take it as it is"
        )


def build_receipt(recipe: Recipe, seed: int, built: Build) -> dict[str, object]:
    """Return the part of a run's receipt that does not need its data."""
    return {
        "recipe": recipe_sha256(recipe),
        "seed": seed,
        "tokenizer": tokenizer_sha256(built.serving_tokenizer),
        "special tokens": str(special_tokens(built.tokenizer)),
        **pretrained_sha256(built.model),
    }


def recipe_sha256(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(deciding_keys(recipe), sort_keys=True).encode()).hexdigest()


def _tasks_sha256(tasks: Sequence[Task]) -> str | None:
    return "+".join(str(task.receipt()["sha256"]) for task in tasks) or None


def code_sha256(model: ForContrastiveLearning) -> str:
    """Return a checksum of the code that a run's numbers depend on, without cards, pictures and publishing.

    The folder of a method counts if the model has a class of it.
    """
    modeling, training = Path(csezoo.modeling.__file__).parent, Path(__file__).parents[1]
    classes = (*type(model).__mro__, *type(model.config).__mro__)
    used = {Path(inspect.getfile(each)).parent for each in classes if each.__module__.startswith(methods.__name__)}
    files = [file for file in modeling.rglob("*.py") if file.parents[1].name != "methods" or file.parent in used]
    files += [file for pattern in CODE for file in training.glob(pattern)]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name} {_as_loaded(file)}\n".encode())
    return digest.hexdigest()


_as_loaded = cache(sha256)  # a file that is edited during a run changes nothing of its later seeds


def pretrained_sha256(model: ForContrastiveLearning) -> dict[str, str]:
    """Return checksums of what a training model starts from: `base_model`, and `generator` if it has one."""
    heads = [head.state_dict() for head in model.masked_lm_heads().values()]
    checksums = {"base_model": model_sha256(model.config.backbone_config, model.encoders()[0].state_dict(), *heads)}
    if model.config.needs_generator:
        generator = model.get_submodule("generator")
        checksums["generator"] = model_sha256(model.config.generator_config, generator.state_dict())
    return checksums


def model_sha256(config: PretrainedConfig, *states: dict[str, torch.Tensor]) -> str:
    """Return a checksum of a model's configuration and tensors."""
    values = {name: value for name, value in config.to_dict().items() if name not in ABOUT_THE_FILE}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode())
    for state in states:
        for name, tensor in sorted(state.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def refuse_mixed_seeds(receipts: dict[int, dict[str, object]], *, force: bool) -> None:
    """Refuse to average seeds that differ in more than the seed, by their receipts."""
    (first, expected), *others = receipts.items() if receipts else [(0, {})]
    for seed, receipt in [] if force else others:
        names = [name for name in {**expected, **receipt} if name != "seed"]
        if changed := [name for name in names if expected.get(name) != receipt.get(name)]:
            raise UserError(
                f"seeds: seed {seed} has another {', '.join(changed)} than seed {first}; undo the change, choose "
                "another --output_dir, or use --force to average them anyway"
            )
