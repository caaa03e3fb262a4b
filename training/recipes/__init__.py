"""Recipes: the declaration of their keys, reading and checking them, and help texts.

May import `csezoo.modeling`, `errors`, `files` and `tables`, and nothing else of training.
"""

from .help import comments, describe_keys, describe_recipe, reference
from .keys import QUICKSTARTS, SCHEDULERS, Key, Recipe, recipe_keys
from .methods import METHOD_FOLDERS, method_keys
from .origin import FREE_KEYS, changes, deciding_keys, origin
from .reading import (
    coerce_keys,
    dump_recipe,
    file_name,
    is_hub_id,
    load_recipe,
    make_recipe,
    merged_values,
    parse_overrides,
    recipe_files,
    recipe_names,
)

__all__ = [
    "FREE_KEYS",
    "METHOD_FOLDERS",
    "QUICKSTARTS",
    "SCHEDULERS",
    "Key",
    "Recipe",
    "changes",
    "coerce_keys",
    "comments",
    "deciding_keys",
    "describe_keys",
    "describe_recipe",
    "dump_recipe",
    "file_name",
    "is_hub_id",
    "load_recipe",
    "make_recipe",
    "merged_values",
    "method_keys",
    "origin",
    "parse_overrides",
    "recipe_files",
    "recipe_keys",
    "recipe_names",
    "reference",
]
