"""Describe the keys in words: for `--help` of training, `--help` of one recipe, and the reference page."""

from __future__ import annotations

import math
import textwrap
import typing
from collections.abc import Mapping
from itertools import groupby
from types import MappingProxyType

import yaml

from ..tables import markdown_table
from .keys import Key, recipe_keys
from .methods import EVERY_METHOD, method_keys
from .reading import load_recipe, optional, read_values, recipe_path

WIDTH = 100
TYPES = {int: "int", float: "float", bool: "bool", str: "str"}


def describe_keys() -> str:
    """Return the keys of every recipe by group, each with type, unit, default and help."""
    return "\n\n".join(_describe_group(group, keys) for group, keys in _groups(recipe_keys()))


def describe_recipe(name: str, overrides: dict[str, object]) -> str:
    """Return what a recipe's YAML file sets and why, and the keys of its method. `overrides` change both."""
    path = recipe_path(name)
    recipe = load_recipe(name, overrides)
    values = recipe.to_dict()
    own = read_values(path)
    introduction, reasons = comments(path.read_text(encoding="utf-8"))
    lines = [f"Values of {path.stem}:"]
    for key in [*own, *(overrides.keys() - own.keys())]:
        reason = "given on the command line" if key in overrides else reasons.get(key, "")
        lines += [f"  {key}: {_text(values[key])}", *_indented(reason)]
    groups = _groups(method_keys(recipe.method))
    keys = [
        _describe_group("Every method" if group == EVERY_METHOD else f"Method {group}", of, recipe.model)
        for group, of in groups
    ]
    return "\n\n".join([*filter(None, [introduction]), "\n".join(lines), *keys])


def reference() -> str:
    """Return all keys as Markdown: a table per group, a table of the keys of every method, and a table per method."""
    from csezoo.modeling import METHODS  # imports torch, which --help can do without

    groups = list(_groups(recipe_keys()))
    groups.append(("Model, for every method", method_keys("simcse")))  # simcse has no further keys
    for name in METHODS:
        keys = {key: declared for key, declared in method_keys(name).items() if declared.group == name}
        groups += [(f"Method `{name}`", keys)] if keys else []
    return "\n\n".join(f"## {title}\n\n{_table(keys)}" for title, keys in groups) + "\n"


def comments(text: str) -> tuple[str, dict[str, str]]:
    """Return the comments of a recipe: those before its first key, and for each key those on its lines.

    A comment at the beginning of a line belongs to the key below it, an indented one to the key above it.

    Example:
        >>> comments("# A recipe.\\nbatch_size: 64  # paper\\n# or more\\nepochs: 1\\nname: 'a # b'")
        ('A recipe.', {'batch_size': 'paper', 'epochs': 'or more', 'name': ''})
    """
    ends: dict[int, int] = {}  # column at which a line's values end; a `#` before it does not begin a comment
    for token in yaml.scan(text):
        if token.start_mark.index < token.end_mark.index:
            ends |= dict.fromkeys(range(token.start_mark.line, token.end_mark.line), len(text))
            ends[token.end_mark.line] = max(token.end_mark.column, ends.get(token.end_mark.line, 0))
    document = yaml.compose(text, yaml.SafeLoader)
    pairs = document.value if isinstance(document, yaml.MappingNode) else []
    keys = {key.start_mark.line: key.value for key, _ in pairs}
    introduction: list[str] = []
    above: list[str] = []
    reasons: dict[str, list[str]] = {}
    of_key = introduction
    for number, line in enumerate(text.splitlines()):
        if number in keys:
            of_key = reasons[keys[number]] = above
            above = []
        comment = line[ends.get(number, 0) :].strip()
        if comment.startswith("#"):
            (above if reasons and line.startswith("#") else of_key).append(comment.lstrip("# "))
    return "\n".join(introduction), {key: " ".join(lines) for key, lines in reasons.items()}


def _groups(keys: Mapping[str, Key]) -> typing.Iterator[tuple[str, dict[str, Key]]]:
    for group, items in groupby(keys.items(), key=lambda item: item[1].group):
        yield group, dict(items)


def _describe_group(title: str, keys: Mapping[str, Key], used: Mapping[str, object] = MappingProxyType({})) -> str:
    """Describe keys, with the value that a recipe uses before the default."""
    lines = [f"{title}:"]
    for name, key in keys.items():
        choices = f"one of {', '.join(map(str, key.allowed))}" if isinstance(key.allowed, tuple) else ""
        here = f"in this recipe {_text(used[name])}" if name in used else ""
        details = [_type(key), choices, key.unit, here, f"default {_text(key.default)}"]
        lines += [f"  --{name} ({'; '.join(filter(None, details))})", *_indented(key.help)]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _table(keys: Mapping[str, Key]) -> str:
    from csezoo.modeling.contrastive.allowed_values import in_words

    rows = []
    for name, key in keys.items():
        if isinstance(key.allowed, tuple):
            allowed = ", ".join(f"`{choice}`" for choice in key.allowed)
        else:
            allowed = in_words(key.allowed) if key.allowed else ""
        rows.append([f"`{name}`", key.help, _type(key), f"`{_text(key.default)}`", allowed, key.unit])
    return markdown_table(["key", "what it is", "type", "default", "allowed", "unit"], *rows)


def _type(key: Key) -> str:
    plain, nullable = optional(key.hint)
    items = typing.get_args(plain)
    if typing.get_origin(plain) is dict:
        return f"mapping of names to texts{' or null' if nullable else ''}"
    name = f"list of {TYPES[items[0]]}" if items else TYPES[plain]
    return f"{name} or null" if nullable else name


def _text(value: object) -> str:
    """Return a value on one line, as it is written in a recipe."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True).split("\n")[0]
