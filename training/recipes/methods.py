"""The keys of a method: what its configuration class declares."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from .keys import Key

EVERY_METHOD = "Every method"
DECLARED = re.compile(r"^    (\w+): .+ = key\(", re.MULTILINE)  # a key in the source of a configuration
# One folder for each method, found without importing them: its `recipes` and its `cards` are YAML files.
METHOD_FOLDERS = Path(importlib.util.find_spec("csezoo.modeling").submodule_search_locations[0]) / "methods"  # type: ignore[union-attr,index]


def method_keys(name: str) -> dict[str, Key]:
    """Return the keys that a recipe of this method may set beside those of every recipe, the method's own first."""
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
    """Return the names of at least the keys of `method_keys`, or None for a method that has no folder.

    The names are read from the source of the configurations: importing them imports torch, which takes seconds. A
    wrong key is found without it.
    """
    parts = set(name.split("+"))
    if not parts <= {file.parent.name for file in METHOD_FOLDERS.glob("*/__init__.py")}:
        return None
    files = [METHOD_FOLDERS.parent / "contrastive" / "configuration.py"]
    files += [file for part in parts for file in (METHOD_FOLDERS / part).glob("*.py")]
    return {key for file in files for key in DECLARED.findall(file.read_text(encoding="utf-8"))}
