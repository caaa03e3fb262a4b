"""Adapters in PEFT's format: the low-rank change of an encoder's weights, and the repository of it and its base."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from csezoo.modeling.serving.fingerprint_csezoo import FINGERPRINT_NAME, verify_fingerprint
from csezoo.modeling.serving.modeling_csezoo import CsezooModel

from ..cards.listing import ADAPTER, CARDS
from ..errors import UserError, library_errors, one_line
from ..evaluation.encoders import checkpoint_tokenizer, load_checkpoint, plain_encoder
from ..files import empty_target, new_directory, read_json, write_json
from ..hub import local_directory, repository_file, sha256
from ..loading.served_encoder import load_as_served, served_encoder
from ..recipes import Recipe, is_hub_id, load_recipe
from ..recipes.reading import dump_recipe
from .fingerprints import add_checksums, read_fingerprint, write_fingerprint
from .repository import save_card
from .staging import hide_paths, write_eval_results

WEIGHTS = "adapter_model.safetensors"
NEEDED = (ADAPTER, WEIGHTS, FINGERPRINT_NAME, "recipe.yaml", "results.json")
BASE_WEIGHTS = "model.safetensors"
# The rounding of merged weights adds singular values of 1e-7 of the largest one.
SMALLEST = 1e-5
# More than this is no low rank: the run has trained the weights themselves.
HIGHEST_RANK = 128


def save_adapter(
    directory: Path, base: PreTrainedModel, tuned: PreTrainedModel, base_name: str, revision: str | None = None
) -> None:
    """Write the difference of two encoders as an adapter, if it is of low rank and in linear layers alone.

    Args:
        base, tuned: of the same class. Poolers are left out, because no model of the zoo has one.
        base_name, revision: the base on the Hub.
    """
    linear = {f"{name}.weight": name for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    others = tuned.state_dict()
    factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, tensor in base.state_dict().items():
        if name.startswith("pooler.") or tensor.equal(others[name]):
            continue
        change = (others[name] - tensor).double()
        if name not in linear or (found := _factors(change)) is None:
            raise UserError(f"{name} has changed, and not by a low rank; train with --lora_rank, or publish the model")
        factors[linear[name]] = found
    if not factors:
        raise UserError("no weight differs from the base model; there is no adapter to write")
    rank = max(len(down) for down, _ in factors.values())
    tensors = {}
    for name, (down, up) in factors.items():  # of one rank, with rows of zeros where a layer needs fewer
        more = rank - len(down)
        tensors[f"base_model.model.{name}.lora_A.weight"] = nn.functional.pad(down, (0, 0, 0, more)).float()
        tensors[f"base_model.model.{name}.lora_B.weight"] = nn.functional.pad(up, (0, more)).float()
    config = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        base_model_name_or_path=base_name,
        revision=revision,
        r=rank,
        lora_alpha=rank,  # so that nothing is scaled
        lora_dropout=0.0,
        target_modules=_targets(list(factors), list(linear.values())),
        inference_mode=True,
    )
    directory.mkdir(parents=True)
    # PEFT would write its set of names in another order each time.
    content = {**config.to_dict(), "target_modules": config.target_modules and sorted(config.target_modules)}
    (directory / ADAPTER).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / WEIGHTS, {"format": "pt"})


def _factors(change: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return A `(r, in)` and B `(out, r)` with B A = change `(out, in)`; None if its rank is not low."""
    if change.dim() != 2:
        return None
    left, singular, right = torch.linalg.svd(change, full_matrices=False)
    rank = int((singular > SMALLEST * singular[0]).sum())
    if rank > min(HIGHEST_RANK, min(change.shape) // 2):
        return None
    root = singular[:rank].sqrt()
    return root[:, None] * right[:rank], left[:, :rank] * root


def _targets(changed: list[str], linear: list[str]) -> list[str]:
    """Return how the names of the changed layers end, or the names themselves if other layers' names end so too.

    Example:
        >>> layers = ["0.query", "0.key", "1.query", "1.key"]
        >>> _targets(["0.query", "1.query"], layers), _targets(["0.query"], layers)
        (['query'], ['0.query'])
    """
    ends = sorted({name.rpartition(".")[2] for name in changed})
    alike = [name for name in linear if name.rpartition(".")[2] in ends]
    return ends if len(alike) == len(changed) else sorted(changed)


def adapter_of_run(run: str, directory: Path, base: str | None = None) -> None:
    """Write the adapter of a finished run: its files, its card, and a fingerprint of the model with its base.

    Args:
        run: a run directory whose recipe has a `lora_rank`.
        base: Hub id of the base model, if the recipe names a directory.
    """
    if missing := [name for name in ("best", "recipe.yaml", "results.json") if not Path(run, name).exists()]:
        raise UserError(f"{run} has no {', '.join(missing)}; give the directory of a finished run")
    recipe = load_recipe(str(Path(run, "recipe.yaml")))
    trained_on = recipe.base_model or ""
    base = base or trained_on
    if not is_hub_id(base):
        raise UserError(f"base_model: {base} is a directory; give --base with the Hub id of that encoder")
    weights = base_weights(trained_on, recipe.base_revision)
    if base != trained_on and sha256(base_weights(base, recipe.base_revision)) != sha256(weights):
        raise UserError(
            f"--base: {base} has other weights than {trained_on}, on which {run} was trained; give its Hub id"
        )
    best: Any = load_checkpoint(str(Path(run, "best")))
    base_model = served(trained_on, recipe)
    refuse_other_settings(base_model, best, recipe)
    save_adapter(directory, base_model.backbone, best.backbone, base, recipe.base_revision)
    fingerprint = read_fingerprint(Path(run, "best"), run)
    recipe.base_model = base
    # What a reader and `csezoo merge` need beside the files of PEFT.
    vectors = {name: fingerprint[name] for name in ("sentences", "token_ids", "embeddings")}
    trained_with = {"model": base, "file": BASE_WEIGHTS, "sha256": sha256(weights)}
    write_fingerprint(directory, {**vectors, "base": trained_with})
    dump_recipe(recipe, directory / "recipe.yaml")
    write_json(directory / "results.json", read_json(Path(run, "results.json")))


def refuse_other_settings(base_model: Any, best: Any, recipe: Recipe) -> None:
    """Refuse a run that serves its encoder otherwise than its base model does: an adapter has the weights alone."""
    settings = ("named_prompts", "default_prompt_name", "similarity_fn_name", "embedding_size")
    if changed := [name for name in settings if getattr(base_model, name) != getattr(best, name)]:
        raise UserError(f"{changed[0]}: an adapter has that of its base model, not that of the run; publish the model")
    name, revision = str(recipe.base_model), recipe.base_revision
    bare = served_encoder(name, revision) is None and load_as_served(name, revision, None) is None
    if bare and best.pooling != "mean":
        raise UserError(
            f"pooling: with an adapter, sentence-transformers reads {name} by mean pooling, and the run has "
            f"{best.pooling}; publish the model"
        )


def stage_adapter(run: str, to: str, staged: Path, base: str | None = None) -> None:
    """Write the files of an adapter as they will be published."""
    if not Path(run, ADAPTER).is_file():
        adapter_of_run(run, staged, base)
    else:
        if base:
            raise UserError(f"--base: {run} names its base model; leave the option out")
        staged.mkdir()
        for name in NEEDED:
            shutil.copy(find_adapter(run) / name, staged)
    hide_paths(staged)
    recipe = load_recipe(str(staged / "recipe.yaml"))
    recipe.base_model = read_json(staged / FINGERPRINT_NAME)["base"]["model"]  # whatever directory is here
    _save_card(staged, recipe, staged / "results.json", adapter=to)
    write_eval_results(staged)


def _save_card(directory: Path, recipe: Recipe, results: Path, adapter: str | None = None) -> None:
    report = read_json(results)
    try:
        save_card(directory, recipe, report, adapter=adapter)
    except (KeyError, TypeError) as error:
        raise UserError(f"{results} is not a results file ({one_line(error)})") from error


def verify_adapter(staged: Path) -> str:
    """Merge a staged adapter with its base model, and compare the model with the fingerprint."""
    with TemporaryDirectory() as merged:
        merge_adapter(str(staged), str(Path(merged, "model")))
    return "checked   token ids and vectors, merged with the base model"


def find_adapter(name: str) -> Path:
    """Return the directory of an adapter: one of the zoo by its name, a directory, or one of the Hub."""
    directory = CARDS / name if (CARDS / name / ADAPTER).is_file() else local_directory(name, only=[*NEEDED])
    if missing := [file for file in NEEDED if not (directory / file).is_file()]:
        known = ", ".join(sorted(file.parent.name for file in CARDS.glob(f"*/{ADAPTER}"))) or "none"
        raise UserError(f"{name} is no adapter of the zoo: it has no {', '.join(missing)}; those here are: {known}")
    return directory


def base_weights(base: str, revision: str | None = None) -> Path:
    """Return the file with a base model's weights."""
    file = repository_file(base, BASE_WEIGHTS, revision)
    if file is None:
        raise UserError(f"{base} has no {BASE_WEIGHTS}, or cannot be reached; give --base DIR with a copy of it")
    return file


def served(base: str, recipe: Recipe) -> Any:
    """Load a base model with its tokenizer, as its repository serves it; a bare one with the pooling of the recipe."""
    if model := load_as_served(base, recipe.base_revision, served_encoder(base, recipe.base_revision)):
        return model
    encoder, tokenizer = plain_encoder(base, str(recipe.model["pooling"]), revision=recipe.base_revision or "main")
    encoder.tokenizer = tokenizer
    return encoder


def merge_adapter(
    adapter: str, to: str, *, base: str | None = None, report: Callable[[str], None] = lambda line: None
) -> None:
    """Write the complete repository of an adapter and its base model, and compare it with the adapter's fingerprint.

    Args:
        base: directory or Hub id of the base model, by default the one that the adapter names.

    Raises:
        UserError: the base is another one than the adapter was trained on, or the fingerprint does not match.

    Example:
        `merge_adapter("simcse-sup-all-minilm-l6", "merged")`
    """
    directory = find_adapter(adapter)
    fingerprint = read_fingerprint(directory, adapter)
    expected = fingerprint.get("base", {})
    if not isinstance(expected, dict):
        raise UserError(f"{directory / FINGERPRINT_NAME}: base must be a model, a file and a checksum")
    target = empty_target(to)
    base = base or expected.get("model")
    if not base:
        raise UserError(f"{adapter} does not name its base model; give --base")
    recipe = load_recipe(str(directory / "recipe.yaml"))
    if base != expected.get("model"):
        recipe.base_revision = None  # of the adapter's own base
    if sha256(base_weights(base, recipe.base_revision)) != expected.get("sha256"):
        raise UserError(
            f"--base: {base} has other weights than {expected.get('model')}, on which {adapter} was trained; give that"
        )
    report(f"checked   {base} is the base model of {adapter}")
    model = served(base, recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT 0.21 asks transformers for a name that it will drop
        with library_errors(f"{adapter}: the adapter cannot be loaded ({{error}})"):
            model.backbone = PeftModel.from_pretrained(model.backbone, str(directory)).merge_and_unload()
    with new_directory(target) as partial:
        model.save_pretrained(partial)
        add_checksums(partial)
        merged: CsezooModel = load_checkpoint(str(partial))
        try:
            lines = verify_fingerprint(merged, checkpoint_tokenizer(merged, str(partial)), fingerprint)
        except ValueError as error:
            raise UserError(f"{adapter} on {base} does not match its fingerprint: {one_line(error)}") from None
        for name in ("recipe.yaml", "results.json"):
            shutil.copy(directory / name, partial)
        _save_card(partial, recipe, directory / "results.json")
    for line in lines:
        report(f"checked   {line}")
