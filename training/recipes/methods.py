"""The keys of a method: the arguments of its configuration class."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
import typing
from pathlib import Path
from typing import Any

from .keys import Key

# Arguments of the configuration classes that a run fills in itself.
FILLED_IN = {"self", "kwargs", "backbone_config", "prompt_token_ids", "mask_token_id", "special_token_ids"}
FILLED_IN |= {"whitening_size", "flow_width", "generator_config", "batch_size"}
EVERY_METHOD = "Every method"
# One folder for each method, found without importing them: its `recipes` and its `cards` are YAML files.
METHOD_FOLDERS = Path(importlib.util.find_spec("csezoo.modeling").submodule_search_locations[0]) / "methods"  # type: ignore[union-attr,index]


def method_keys(name: str) -> dict[str, Key]:
    """Return the keys that a recipe of this method may set beside those of every recipe, the method's own first.

    Type and default are those of the constructor, the allowed values are in the class's `allowed`, the help is in its
    docstring.

    Raises:
        ValueError: a method is unknown, or two methods cannot be combined.

    Example:
        >>> method_keys("simcse")["temperature"].hint
        <class 'float'>
    """
    from csezoo.modeling import SentenceEncoderConfig, method  # imports torch, which --help can do without

    keys: dict[str, Key] = {}
    allowed: dict[str, str | tuple] = {}
    helps: dict[str, str] = {}
    # From the base class to the method: a key that is declared again replaces the earlier one.
    for cls in reversed(method(name)[0].__mro__):
        if not issubclass(cls, SentenceEncoderConfig):
            continue
        allowed |= vars(cls).get("allowed", {})
        defaults, hints, described = _constructor(cls)  # type: ignore[arg-type]  # a class can be hashed
        helps |= described
        group = cls.model_type or EVERY_METHOD
        for key, default in defaults.items():
            keys[key] = Key(group, default, helps.get(key, ""), allowed.get(key, ""), hint=hints[key])
    return dict(sorted(keys.items(), key=lambda item: item[1].group == EVERY_METHOD))


@functools.cache
def _constructor(cls: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return the default, the type and the help of each argument of a configuration that a recipe may set."""
    parameters = inspect.signature(cls).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items() if name not in FILLED_IN}
    return defaults, typing.get_type_hints(cls.__init__), argument_help(cls.__doc__ or "")


def key_names(name: str) -> set[str] | None:
    """Return the names of the keys of `method_keys`, or None for a method that has no folder.

    The names are read from the source of the configurations: importing them imports torch, which takes seconds. A
    wrong key is found without it.

    Example:
        >>> {"temperature", "prefix_length"} <= key_names("diffaug"), "prefix_length" in key_names("simcse")
        (True, False)
    """
    names = _arguments(METHOD_FOLDERS.parent / "contrastive" / "configuration.py")
    folders = {folder.name: folder for folder in METHOD_FOLDERS.iterdir()}
    for part in name.split("+"):
        if part not in folders:
            return None
        # A method in one file has only the second.
        files = [folders[part] / file for file in ("configuration.py", "__init__.py")]
        names = names | _arguments(next(file for file in files if file.is_file()))  # of a cached set
    return names - FILLED_IN


@functools.cache
def _arguments(file: Path) -> set[str]:
    """Return the arguments of the constructors in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    constructors = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return {argument.arg for node in constructors for argument in node.args.args}


def argument_help(docstring: str) -> dict[str, str]:
    """Return the description of each argument in the Args section of a docstring.

    Example:
        >>> argument_help('''Short.
        ...
        ...     Args:
        ...         low, high: ends of the range,
        ...             both included.
        ...         size: in bytes.
        ...
        ...     Returns:
        ...         sum: not an argument.
        ...     ''')
        {'low': 'Ends of the range, both included.', 'high': 'Ends of the range, both included.', 'size': 'In bytes.'}
    """
    section = re.search(r"\nArgs:\n(.*?)(?:\n\S|\Z)", inspect.cleandoc(docstring), re.DOTALL)
    entries = re.findall(r"^    (\w[\w, ]*): (.+(?:\n     .+)*)", section[1] if section else "", re.MULTILINE)
    helps: dict[str, str] = {}
    for names, text in entries:
        words = text.split()
        if re.match("[a-z]{2}", words[0]):  # a symbol stays as it is
            words[0] = words[0].capitalize()
        helps |= dict.fromkeys(names.split(", "), " ".join(words))
    return helps
