"""Recipes: the declaration of their keys, reading and checking them, and help texts.

May import `csezoo.modeling`, `errors`, `files` and `tables`, and nothing else of training.
"""

from .help import reference
from .keys import QUICKSTARTS, Recipe
from .methods import METHOD_FOLDERS, method_keys
from .origin import FREE_KEYS, changes, deciding_keys, origin
from .reading import dump_recipe, file_name, is_hub_id, load_recipe, make_recipe, parse_overrides, recipe_names

__all__ = [
    "FREE_KEYS",
    "METHOD_FOLDERS",
    "QUICKSTARTS",
    "Recipe",
    "changes",
    "deciding_keys",
    "dump_recipe",
    "file_name",
    "is_hub_id",
    "load_recipe",
    "make_recipe",
    "method_keys",
    "origin",
    "parse_overrides",
    "recipe_names",
    "reference",
]
