"""Read a recipe from a YAML file, override its values, convert them to the types of their keys, and write it."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Collection, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError, nearest, one_line, quoted, refuse_bytes
from ..files import replace_file
from .keys import PATH, Recipe, recipe_keys, refuse_disallowed
from .methods import METHOD_FOLDERS, key_names, method_keys

KINDS: dict[object, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@cache
def recipe_files() -> dict[str, Path]:
    """Return the recipes of the zoo: each name with its file, in alphabetical order."""
    files = sorted(METHOD_FOLDERS.glob("*/recipes/*.yaml"), key=lambda path: path.stem)
    return {path.stem: path for path in files}


def recipe_names() -> list[str]:
    """Return the names of the recipes of the zoo."""
    return list(recipe_files())


def file_name(path: str) -> str:
    """Return the last part of a path. The directories of this machine are not published.

    Example:
        >>> file_name("data/nli/triplets.csv"), file_name("./minilm/")
        ('triplets.csv', 'minilm')
    """
    return path.rstrip("/").rsplit("/", 1)[-1]


def is_hub_id(name: str | None) -> typing.TypeGuard[str]:
    """Return whether a recipe names a model or a data set on the Hub, not a local directory, which `Recipe` marks.

    Example:
        >>> is_hub_id("google-bert/bert-base-uncased"), is_hub_id("./minilm"), is_hub_id(None)
        (True, False, False)
    """
    return name is not None and name[:1] not in PATH


def recipe_path(name: str) -> Path:
    """Return the file of a recipe of the zoo, or the YAML file at this path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else recipe_files().get(name)
    if path is None or not path.is_file():
        hint = nearest(name, recipe_names(), "csezoo recipes lists them; the path of a YAML file works too")
        raise UserError(f"no recipe {quoted(name)}: {hint}")
    return path


def load_recipe(name: str, overrides: dict[str, object] | None = None) -> Recipe:
    """Read a recipe of the zoo by name, or a YAML file by path, and override keys.

    Raises:
        UserError: no such recipe, an unknown key, a value that its key does not allow, or labelled pairs that nothing
            uses.

    Example:
        >>> load_recipe("simcse-bert-base-uncased", {"learning_rate": "1e-5"}).learning_rate
        1e-05
    """
    try:
        recipe = make_recipe(merged_values(name, overrides or {}))
    except UserError as error:
        if overrides or not Path(name).is_file():
            raise  # the value may be one that was given
        raise UserError(f"{name}: {error}") from error
    refuse_unused_pairs(recipe, overrides or {})  # the recipe.yaml of a run has all keys
    return recipe


def merged_values(name: str, overrides: dict[str, object]) -> dict[str, Any]:
    """Return the values of a recipe of the zoo or of a YAML file, with overrides, for `make_recipe`."""
    path = recipe_path(name)
    values = dict(_zoo_values(path) if name in recipe_files() else read_values(path))
    for key, details in BELONGING.items():
        if key in overrides and overrides[key] != values.get(key):
            # `max_steps: 0` is of recipes that train nothing.
            values = {name: value for name, value in values.items() if name not in details or value == 0}
    return {"name": path.stem, "recipe": name if name in recipe_files() else path.name, **values, **overrides}


# Keys of a recipe that do not hold when another key is given: they say more about its data set or model, or would win.
BELONGING = {
    "epochs": ("max_steps",),
    "dataset": ("dataset_file", "dataset_revision"),
    "nli_dataset": ("nli_dataset_file", "nli_dataset_revision"),
    "base_model": ("base_revision",),
    "generator": ("generator_revision",),
}

# Keys that do nothing unless another key is set, or one of two.
DEPENDENT = {
    ("whitening",): ("whitening_sentences", "whitening_power", "whitening_updates"),
    ("flow",): ("flow_sentences", "flow_epochs", "flow_learning_rate", "flow_start", "flow_dropout", "flow_optimizer"),
    ("streaming",): ("shuffle_buffer", "stream_shards"),
    ("teachers",): ("teacher_share",),
    ("nli_file", "nli_dataset"): ("nli_columns", "nli_fraction", "nli_batch_size"),
    ("nli_steps", "nli_epochs"): ("nli_learning_rate", "nli_decay_steps"),
    ("rank_weight",): ("rank_loss", "rank_temperature", "teacher_temperature"),
    ("mlm_weight",): ("mlm_probability",),
    ("lora_rank",): ("lora_dropout",),
}


def keys_without_effect(recipe: Recipe, given: Collection[str]) -> dict[str, str]:
    """Return the given keys that do nothing in a recipe, each with what it depends on.

    Example:
        >>> keys_without_effect(load_recipe("simcse-bert-base-uncased"), ["nli_fraction", "learning_rate"])
        {'nli_fraction': 'nli_file or nli_dataset'}
    """
    values = recipe.to_dict()
    off = {" or ".join(names): keys for names, keys in DEPENDENT.items() if not any(map(values.get, names))}
    if recipe.max_steps is not None:
        off["max_steps: null"] = ("epochs",)
    if recipe.train_fraction == recipe.nli_fraction == 1:
        off["train_fraction or nli_fraction"] = ("fraction_seed",)
    if values.get("projection") not in (None, "gelu"):
        off["projection: gelu"] = ("projection_size",)
    rmsprop = recipe.optimizer == "rmsprop"
    off["another optimizer" if rmsprop else "optimizer: rmsprop"] = ("adam_betas" if rmsprop else "rmsprop_alpha",)
    return {key: other for other, keys in off.items() for key in keys if key in given}


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key that is given twice. YAML itself would use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]  # `<<: *defaults`
        keys = [self.construct_object(key) for key in own]
        if repeated := [key for number, key in enumerate(keys) if key in keys[:number]]:
            raise yaml.YAMLError(f"{quoted(repeated[0])} is given twice; keep one of them")
        return super().construct_mapping(node, deep)


def read_values(path: Path) -> dict[str, Any]:
    """Return the keys and values of a YAML file, or refuse one that is no mapping, or has a key twice."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}  # noqa: S506  # a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or an impossible date
        raise UserError(f"{path}: not valid YAML: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(
            f"{path}: expected a mapping of keys to values, got {type(values).__name__}; write lines of `KEY: VALUE`"
        )
    if wrong := [key for key in values if not isinstance(key, str)]:
        raise UserError(f"{path}: the key {quoted(wrong[0])} is not text; correct it")
    return values


_zoo_values = cache(read_values)  # of a recipe of the zoo, which a table reads many times


def make_recipe(values: dict[Any, Any]) -> Recipe:
    """Check keys and values, and sort the method's keys into `model`."""
    recipe = coerce_keys(values)
    try:
        of_method = method_keys(str(recipe.get("method", "simcse")))
    except ValueError as error:
        raise UserError(f"method: {error}") from error
    others = [name for name in values if name not in recipe]
    refuse_unknown(others, of_method.keys())
    model: dict[str, Any] = {}
    for name in others:
        model[name] = coerce(name, values[name], of_method[name].hint)
        refuse_disallowed(name, model[name], of_method[name])
    read = Recipe(**recipe, model=model, given=frozenset(values))
    refuse_unused_pairs(read, values)
    return read


def refuse_unused_pairs(recipe: Recipe, given: dict[Any, Any]) -> None:
    """Refuse labelled pairs that nothing uses, unless what would use them is given too: 0 then is an ablation."""
    pairs = [key for key in ("nli_file", "nli_dataset") if given.get(key)]
    if pairs and not recipe.reads_labelled_pairs and not {"nli_steps", "nli_epochs", "nli_weight"} & given.keys():
        raise UserError(
            f"{pairs[0]}: nothing uses these pairs; give --nli_steps (updates of a first stage) or --nli_weight "
            "(their loss beside the contrastive one)"
        )


def coerce_keys(values: dict[Any, Any]) -> dict[str, Any]:
    """Check the names of all keys, and return the keys of every recipe with their values as their types.

    This does not import torch. Only the values of the method's keys are not checked.

    Example:
        >>> coerce_keys({"method": "simcse", "batch_size": "8", "temperature": "0.05"})
        {'method': 'simcse', 'batch_size': 8}
    """
    # `recipe` is not declared, because users do not set it. It is filled in when a recipe is read.
    known = {name: key.hint for name, key in recipe_keys().items()} | {"recipe": str | None}
    recipe = {name: coerce(name, value, known[name]) for name, value in values.items() if name in known}
    names = key_names(str(recipe.get("method", "simcse")))
    if names is not None:
        refuse_unknown([name for name in values if name not in known], names)
    return recipe


def refuse_unknown(given: list[Any], of_method: Set[str]) -> None:
    """Refuse keys that neither every recipe nor the method has, and name the nearest key."""
    for name in [name for name in given if name not in of_method]:
        keys = [*recipe_keys(), *sorted(of_method)]
        hint = nearest(name, keys, "csezoo train --help and RECIPE --help list the keys")
        if name in recipe_keys():  # where only the keys of a method are taken
            hint = "a key of csezoo's own runs; set it in your trainer, or leave it out"
        raise UserError(f"unknown key {quoted(name)}: {hint}")


def optional(hint: Any) -> tuple[Any, bool]:
    """Return a type without `None`, and whether it allowed `None`."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # the latter in Python 3.10
        return next(option for option in typing.get_args(hint) if option is not type(None)), True
    return hint, False


def as_word(value: object) -> str:
    """Return a value as `--key=value` takes it. `coerce` reads it.

    Example:
        >>> as_word([1, 2]), as_word(None), as_word(["Yes, {sentence}", "No"])
        ('1,2', 'null', '["Yes, {sentence}", "No"]')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, list):
        return str(value)
    plain = not any(mark in str(item) for item in value for mark in ",[{")
    return ",".join(map(str, value)) if plain else json.dumps(value, ensure_ascii=False)


def coerce(key: str, value: Any, hint: Any) -> Any:
    """Convert a value from YAML or from the command line to the type of its key.

    Raises:
        UserError: it cannot be converted.

    Example:
        >>> coerce("seeds", "1, 2", list[int]), coerce("learning_rate", "3e-5", float)
        ([1, 2], 3e-05)
    """
    hint, nullable = optional(hint)
    if nullable and (value is None or value in ("null", "None")):
        return None
    if typing.get_origin(hint) is list:
        (item_hint,) = typing.get_args(hint)
        if isinstance(value, str) and value.startswith('["'):  # see `as_word`
            with suppress(json.JSONDecodeError):
                value = json.loads(value)
        if isinstance(value, str) and "{" not in value:  # a prompt may contain commas and brackets
            value = value.strip("[]").split(",")
        items = value if isinstance(value, list) else [value]
        return [coerce(key, item.strip() if isinstance(item, str) else item, item_hint) for item in items]
    if typing.get_origin(hint) is dict:
        return _mapping(key, value)
    if hint is str and value == "" and key != "name":  # without a name it is the recipe's
        raise UserError(f"{key}: the value is empty; give one, or leave the key out")
    if hint is str:
        refuse_bytes(key, str(value))
    try:
        if hint is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(value, bool) and hint is str:
            return "yes" if value else "no"  # YAML reads a bare `no` (a precision, a language) as false
        if isinstance(value, bool) or (hint is int and float(value) != int(float(value))):
            raise ValueError
        if hint in (int, float):
            return hint(float(value))
        if hint is str and isinstance(value, str | int | float) and "\0" not in str(value):
            return str(value)
        raise ValueError
    except (ValueError, TypeError, KeyError, OverflowError):
        raise UserError(f"{key}: {quoted(value)} is not {KINDS[hint]}") from None


def _mapping(key: str, value: Any) -> dict[str, str]:
    """Convert a value from YAML, or JSON from the command line, to texts by name."""
    with suppress(json.JSONDecodeError):
        value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, dict) or any(not isinstance(text, str) for pair in value.items() for text in pair):
        raise UserError(f'{key}: {quoted(value)} is not a mapping of names to texts, such as {{"query": "query: "}}')
    return value


def parse_overrides(arguments: list[str]) -> dict[str, object]:
    """Return `--key value`, `--key=value`, `--key v1 v2` (a list) or `--key` (true) as a mapping.

    Raises:
        UserError: a value without a key before it.

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
            raise UserError(f"unexpected argument {argument!r}: after the recipe, give --key value")
        else:
            overrides[key].append(argument)
    single = {0: lambda values: "true", 1: lambda values: values[0]}
    return {key: single.get(len(values), list)(values) for key, values in overrides.items()}


class _RecipeDumper(yaml.SafeDumper):
    """Writes texts so that they are read back unchanged: YAML takes U+0085 for a line break outside double quotes."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\x85" in text else None)


_RecipeDumper.add_representer(str, _RecipeDumper.represent_str)


def dump_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe: every key with its value."""
    replace_file(path, yaml.dump(recipe.to_dict(), Dumper=_RecipeDumper, sort_keys=False, allow_unicode=True))
