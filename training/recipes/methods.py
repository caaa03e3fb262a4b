"""The keys of a method: what its configuration class declares."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

from .keys import Key

EVERY_METHOD = "Every method"
# One folder for each method, found without importing them: its `recipes` and its `cards` are YAML files.
METHOD_FOLDERS = Path(importlib.util.find_spec("csezoo.modeling").submodule_search_locations[0]) / "methods"  # type: ignore[union-attr,index]


def method_keys(name: str) -> dict[str, Key]:
    """Return the keys that a recipe of this method may set beside those of every recipe, the method's own first.

    Raises:
        ValueError: a method is unknown, or two methods cannot be combined.

    Example:
        >>> method_keys("simcse")["temperature"].hint
        <class 'float'>
    """
    from csezoo.modeling import method  # imports torch, which --help can do without
    from csezoo.modeling.contrastive.keys import declared_keys, default_of

    config = method(name)[0]
    keys = {
        key: Key(said.owner or EVERY_METHOD, default_of(config, key), said.help, said.allowed, hint=said.hint)
        for key, said in declared_keys(config).items()
        if said.in_recipes
    }
    return dict(sorted(keys.items(), key=lambda item: item[1].group == EVERY_METHOD))


def key_names(name: str) -> set[str] | None:
    """Return the names of the keys of `method_keys`, or None for a method that has no folder.

    The names are read from the source of the configurations: importing them imports torch, which takes seconds. A
    wrong key is found without it.

    Example:
        >>> {"temperature", "prefix_length"} <= key_names("diffaug"), "prefix_length" in key_names("simcse")
        (True, False)
    """
    folders = {path.parent.name: path.parent for path in METHOD_FOLDERS.glob("*/__init__.py")}
    names = _declared(METHOD_FOLDERS.parent / "contrastive" / "configuration.py")
    for part in name.split("+"):
        if part not in folders:
            return None
        # A method in one file has only the second.
        files = [folders[part] / file for file in ("configuration.py", "__init__.py")]
        names = names | _declared(next(file for file in files if file.is_file()))  # of a cached set
    return names


@functools.cache
def _declared(file: Path) -> set[str]:
    """Return the keys that the configurations in a file declare for recipes."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    fields = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)]
    return {
        node.target.id
        for node in fields
        if isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "key"
        and not any(keyword.arg == "in_recipes" for keyword in node.value.keywords)
    }
