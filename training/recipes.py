"""Recipes: YAML files with a value, a reason and a source for every key; any key can be overridden."""

from __future__ import annotations

import difflib
import math
import types
import typing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from csezoo.modeling import method

from .errors import UserError
from .files import replace_file

# Those of transformers that need nothing but the numbers of updates.
SCHEDULERS = ("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt")
RECIPES = Path(__file__).parent / "recipes"
POSITIVE: tuple[str, ...] = ("batch_size", "gradient_accumulation_steps", "max_length", "epochs", "eval_steps")
POSITIVE += ("log_steps", "eval_batch_size", "shuffle_buffer", "nli_batch_size", "train_fraction", "nli_fraction")
NOT_NEGATIVE: tuple[str, ...] = ("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm", "warmup_ratio")
NOT_NEGATIVE += ("nli_steps", "length_window")
LEAST = {"max_steps": 0, "max_train_sentences": 1, "nli_decay_steps": 1, "endurance": 1, "whitening": 1}
LEAST |= {"mini_batch_size": 1, "whitening_sentences": 1, "nli_epochs": 0, "nli_learning_rate": 0}
# Keys of a model configuration that a run fills in itself.
FILLED_IN = {"self", "kwargs", "return", "backbone_config", "prompt_token_ids", "mask_token_id", "special_token_ids"}
FILLED_IN |= {"whitening_size", "generator_config"}
# What changes no result: it may differ between a run and its continuation.
FREE_KEYS = {"output_dir", "overwrite", "force", "report_to", "log_steps", "recipe"}


@dataclass
class Recipe:
    """Everything a run is made of. Keys of the method's configuration stand beside these, in `model`.

    Args:
        method: a model type of the zoo, or several joined by `+` that change different seams (`l2pcsr+diffcse`).
        base_model, base_revision: Hub id or directory of the pre-trained encoder, and its pinned revision.
        dataset, dataset_file, dataset_revision: training data from the Hub (one file of it, if it has several); the
            dataset `stsb-sentences` is both sides of all pairs of STS-B, from `eval_data`.
        train_file: a text, CSV, TSV or JSON Lines file (`.gz` too) or Parquet instead; wins over `dataset`.
        text_columns: one column (the sentence is its own positive), two (anchor, positive) or three (and hard
            negative); by default the only column, or `text`.
        max_train_sentences: use the first n rows only.
        train_fraction: keep each row with this probability (a fixed draw, the same for every seed).
        nli_file, nli_dataset, nli_dataset_file, nli_dataset_revision: labelled sentence pairs, for a stage before and
            for `nli_weight`; read like the training data.
        nli_columns: premise, entailed and contradicted hypothesis, or premise, hypothesis and label.
        nli_fraction: keep each labelled row with this probability.
        nli_batch_size: labelled rows a batch, over all processes.
        nli_steps, nli_epochs: updates (or passes over the labelled data) of a stage before, on labelled pairs alone.
        nli_learning_rate: of that stage; by default `learning_rate`.
        nli_decay_steps: updates after which its schedule would end, as many as it has or more; by default those of the
            stage after it.
        generator, generator_revision: masked language model that edits sentences for DiffCSE.
        streaming, shuffle_buffer: read while training, shuffled in a buffer, instead of preparing the data first.
        eval_data: `hub`, a directory in SentEval's layout, or `none`; dev and test pairs of STS.
        dev_file, test_file: CSV files (sentence1, sentence2, score) used instead of `eval_data`.
        output_dir: the run's directory, `runs/<recipe>` by default.
        batch_size: sentences a batch, over all processes; the in-batch negatives.
        mini_batch_size: sentences that a process encodes at a time; the gradient is that of the whole batch, in the
            memory of so many, for a second forward pass.
        length_window: batches hold sentences of similar length, sorted within this many batches and then shuffled;
            0, as in the papers, leaves them random.
        gradient_accumulation_steps: batches an update; negatives do not span them.
        max_length: word pieces of a sentence; with the special tokens, but without a prompt's template.
        epochs, max_steps: passes over the data, or updates if given (0: no training).
        learning_rate, weight_decay, adam_betas, adam_epsilon, max_grad_norm: AdamW and clipping (0: none).
        lr_scheduler, warmup_ratio: a schedule of transformers and the share of updates that warm up.
        eval_steps, log_steps: updates between dev evaluations (each writes a checkpoint), and between logged losses.
        endurance: stop when the dev score has been lower than the one before it this many times (SG-OPT).
        whitening, whitening_sentences: dimensions of a whitening fitted at the end, and sentences it is fitted on.
        eval_batch_size: most texts a forward pass in evaluation.
        seeds: one run each; several are aggregated.
        mixed_precision: `no`, `fp16`, `bf16`, or `auto`: what a short measurement finds faster of `no` and `bf16`; by
            default what `accelerate launch` was told.
        attn_implementation, gradient_checkpointing: passed to the backbone.
        report_to: a tracker of accelerate by name, or `none`.
        license, language: of the published weights, on the model card.
        overwrite: delete what another recipe left in `output_dir`.
        force: go on with it, though recipe, data, code or launch are no longer those it began with.
        name: of the run, its card and its default directory; by default the recipe's.
        recipe: the recipe that the run was started from, by name or file name; filled in when it is read.
    """

    method: str = "simcse"
    base_model: str | None = None
    base_revision: str | None = None
    dataset: str | None = None
    dataset_file: str | None = None
    dataset_revision: str | None = None
    train_file: str | None = None
    text_columns: list[str] | None = None
    max_train_sentences: int | None = None
    train_fraction: float = 1.0
    nli_file: str | None = None
    nli_dataset: str | None = None
    nli_dataset_file: str | None = None
    nli_dataset_revision: str | None = None
    nli_columns: list[str] | None = None
    nli_fraction: float = 1.0
    nli_batch_size: int = 128
    nli_steps: int = 0
    nli_epochs: float | None = None
    nli_learning_rate: float | None = None
    nli_decay_steps: int | None = None
    generator: str | None = None
    generator_revision: str | None = None
    streaming: bool = False
    shuffle_buffer: int = 10_000
    eval_data: str = "hub"
    dev_file: str | None = None
    test_file: str | None = None
    output_dir: str | None = None
    batch_size: int = 64
    mini_batch_size: int | None = None
    length_window: int = 0
    gradient_accumulation_steps: int = 1
    max_length: int = 32
    epochs: float = 1.0
    max_steps: int | None = None
    learning_rate: float = 3e-5
    weight_decay: float = 0.0
    adam_betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler: str = "linear"
    warmup_ratio: float = 0.0
    eval_steps: int = 125
    log_steps: int = 25
    endurance: int | None = None
    whitening: int | None = None
    whitening_sentences: int = 10_000
    eval_batch_size: int = 128
    seeds: list[int] = field(default_factory=lambda: [42])
    mixed_precision: str | None = None
    attn_implementation: str | None = None
    gradient_checkpointing: bool = False
    report_to: str = "tensorboard"
    license: str = "apache-2.0"
    language: str = "en"
    overwrite: bool = False
    force: bool = False
    name: str = ""
    recipe: str | None = None
    model: dict = field(default_factory=dict)

    def __post_init__(self):
        # A directory is told from a Hub id by its first character, here and wherever the recipe is read again.
        if self.base_model and self.base_model[0] not in "./~" and Path(self.base_model).is_dir():
            self.base_model = f"./{self.base_model}"
        for key in POSITIVE:
            if not 0 < getattr(self, key) < math.inf:
                raise UserError(f"{key}: {getattr(self, key)} must be greater than 0")
        for key in NOT_NEGATIVE:
            if not 0 <= getattr(self, key) < math.inf:
                raise UserError(f"{key}: {getattr(self, key)} must not be negative")
        for key, least in LEAST.items():
            if getattr(self, key) is not None and getattr(self, key) < least:
                raise UserError(f"{key}: {getattr(self, key)} must be at least {least}")
        for key in ("train_fraction", "nli_fraction"):
            if getattr(self, key) > 1:
                raise UserError(f"{key}: {getattr(self, key)} must be at most 1")
        if self.nli_steps and self.nli_epochs:
            raise UserError("nli_steps and nli_epochs: give one of them")
        if self.streaming and self.train_fraction < 1:
            raise UserError("train_fraction: a stream is read as it comes, give max_train_sentences instead")
        if self.whitening and not (self.train_file or self.dataset):
            raise UserError("whitening: it is fitted on training sentences, give --train_file or --dataset")
        if len(self.adam_betas) != 2 or not all(0 <= beta < 1 for beta in self.adam_betas):
            raise UserError(f"adam_betas: {self.adam_betas} must be two numbers from 0 to below 1")
        if self.lr_scheduler not in SCHEDULERS:
            raise UserError(f"lr_scheduler: {self.lr_scheduler!r} is none of {', '.join(SCHEDULERS)}")
        if not self.warmup_ratio < 1:
            raise UserError(f"warmup_ratio: {self.warmup_ratio} must be below 1, it is a share of the updates")
        if self.streaming and self.max_steps is None:
            raise UserError("streaming: the length of a stream is not known, give --max_steps too")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(0 <= s < 2**32 for s in self.seeds):
            raise UserError(f"seeds: {self.seeds} must be one or more different numbers from 0 to 2^32 - 1")

    def to_dict(self) -> dict:
        """The flat mapping a `recipe.yaml` holds."""
        flat = asdict(self)
        model = flat.pop("model")
        return {**flat, **model}


def file_name(path: str) -> str:
    """A file or directory by its name: where it lies is nobody else's.

    Example:
        >>> file_name("data/nli/triplets.csv"), file_name("./minilm/")
        ('triplets.csv', 'minilm')
    """
    return path.rstrip("/").rsplit("/", 1)[-1]


def recipe_names() -> list[str]:
    """Names of the recipes that come with the zoo."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def method_keys(name: str) -> dict[str, object]:
    """Keys of a method's configuration that a recipe may set, with their types.

    Example:
        >>> method_keys("simcse")["temperature"]
        <class 'float'>
    """
    keys: dict[str, object] = {}
    for cls in method(name)[0].__mro__:
        if cls.__module__.startswith("csezoo."):
            hints = typing.get_type_hints(cls.__init__)  # type: ignore[misc]  # of a class, not of an instance
            keys |= {k: v for k, v in hints.items() if k not in FILLED_IN | keys.keys()}
    return keys


def load_recipe(name: str, overrides: dict[str, object] | None = None) -> Recipe:
    """Read a recipe of the zoo by name, or a YAML file by path, and override keys.

    Raises:
        UserError: no such recipe, an unknown key, or a value of the wrong type.

    Example:
        >>> load_recipe("simcse-bert-base-uncased", {"learning_rate": "1e-5"}).learning_rate
        1e-05
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if not path.is_file():
        near = difflib.get_close_matches(name, recipe_names(), n=1)
        hint = (
            f"did you mean {near[0]}?" if near else f"choose one of {', '.join(recipe_names())}, or give a YAML path"
        )
        raise UserError(f"no recipe {name!r}: {hint}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe is a mapping of keys to values, this is a {type(values).__name__}")
    own = name if name in recipe_names() else path.name
    return make_recipe({"name": path.stem, "recipe": own, **values, **(overrides or {})})


def make_recipe(values: dict[str, object]) -> Recipe:
    """Check keys and types, and sort the method's keys into `model`."""
    name = values.get("method", "simcse")
    try:
        of_method = method_keys(str(name))
    except ValueError as error:
        raise UserError(f"method: {error}") from error
    own = {key: hint for key, hint in typing.get_type_hints(Recipe).items() if key != "model"}
    recipe: dict[str, Any] = {}
    model: dict[str, Any] = {}
    for key, value in values.items():
        if key in own:
            recipe[key] = coerce(key, value, own[key])
        elif key in of_method:
            model[key] = coerce(key, value, of_method[key])
        else:
            near = difflib.get_close_matches(key, [*own, *of_method], n=1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join([*own, *of_method])}"
            raise UserError(f"unknown key {key!r}: {hint}")
    return Recipe(**recipe, model=model)


def coerce(key: str, value: Any, hint: Any) -> Any:
    """A value from YAML or the command line as the type its key wants.

    Example:
        >>> coerce("seeds", "1, 2", list[int]), coerce("learning_rate", "3e-5", float)
        ([1, 2], 3e-05)
    """
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # Python 3.10 gives the second
        if value is None or value in ("null", "None"):
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    origin = typing.get_origin(hint)
    try:
        if origin is list:
            (item_hint,) = typing.get_args(hint)
            if isinstance(value, str) and "{" not in value:  # a prompt may hold commas and brackets of its own
                value = value.strip("[]").split(",")
            items = value if isinstance(value, list) else [value]
            return [coerce(key, item.strip() if isinstance(item, str) else item, item_hint) for item in items]
        if hint is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(value, bool) and hint is str:
            return "yes" if value else "no"  # YAML reads a bare `no` (a precision, a language) as false
        if isinstance(value, bool):
            raise ValueError
        if hint is int and float(value) != int(float(value)):
            raise ValueError
        if hint is int:
            return int(float(value))
        if hint is float:
            return float(value)
        if hint is str and isinstance(value, str | int | float):
            return str(value)
        raise ValueError
    except (ValueError, TypeError, KeyError, OverflowError):
        kind = hint.__name__ if origin is None else str(hint)
        raise UserError(f"{key}: {value!r} is not a {kind}") from None


def parse_overrides(arguments: list[str]) -> dict[str, object]:
    """`--key value`, `--key=value`, `--key v1 v2` (a list) or `--key` (true) as a mapping.

    Example:
        >>> parse_overrides(["--seeds", "1", "2", "--overwrite", "--epochs=3"])
        {'seeds': ['1', '2'], 'overwrite': 'true', 'epochs': '3'}
    """
    overrides, key = {}, None
    for argument in arguments:
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            key = key.replace("-", "_")
            overrides[key] = [value] if equals else []
        elif key is None:
            raise UserError(f"{argument!r} stands alone: after the recipe come --key value pairs")
        else:
            overrides[key].append(argument)
    single = {0: lambda values: "true", 1: lambda values: values[0]}
    return {key: single.get(len(values), list)(values) for key, values in overrides.items()}


def describe_keys(name: str = "simcse") -> str:
    """All keys of a method's recipes with their defaults, for `--help`."""
    defaults = Recipe()
    keys = [field.name for field in fields(Recipe) if field.name not in ("model", "recipe")]
    lines = [f"  --{key} ({getattr(defaults, key)})" for key in keys]
    config = method(name)[0]()
    return "\n".join([*lines, *(f"  --{key} ({getattr(config, key)})" for key in method_keys(name))])


def dump_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe, every key with its value."""
    replace_file(path, yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True))
