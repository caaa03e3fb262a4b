"""Spaces of values: YAML files that say for each key of a recipe what a search may choose.

```yaml
learning_rate: {low: 1.0e-6, high: 1.0e-4, log: true}  # an interval; `step` is the distance of the values in it
batch_size: [32, 64, 128]                              # choices
```

A space of choices alone is a grid.
"""

from __future__ import annotations

import math
import typing
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ..errors import UserError, quoted
from ..recipes import FREE_KEYS, load_recipe, method_keys
from ..recipes.keys import recipe_keys
from ..recipes.reading import as_word, optional, read_values

SPACES = Path(__file__).parent / "spaces"
INTERVAL = ("low", "high", "log", "step")
Space = dict[str, BaseDistribution]


def space_names() -> list[str]:
    """Return the names of the papers' spaces.

    Example:
        >>> space_names()
        ['diffcse/appendix-a', 'prdsimcse/table-3']
    """
    return sorted(path.relative_to(SPACES).with_suffix("").as_posix() for path in SPACES.rglob("*.yaml"))


def load_space(name: str, recipe: str, overrides: dict[str, Any]) -> Space:
    """Read a space, and check the ends or the choices of each key with the recipe."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else SPACES / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"space: {name} is neither a YAML file nor one of {', '.join(space_names())}")
    values = read_values(path)
    if not values:
        raise UserError(f"{path}: the space is empty; give KEY: [choices] or KEY: {{low: …, high: …}}")
    if twice := sorted(values.keys() & overrides.keys()):
        raise UserError(f"{path}: {twice[0]} is in the space and set too; leave one of them out")
    if same := sorted(values.keys() & (FREE_KEYS | {"seeds"})):
        raise UserError(f"{path}: {same[0]} is not a setting that a search can choose; leave it out")
    space = {}
    for key, allowed in values.items():
        _refuse_malformed(f"{path}: {key}", allowed)
        for value in allowed if isinstance(allowed, list) else (allowed["low"], allowed["high"]):
            method = load_recipe(recipe, {**overrides, key: value}).method
        space[key] = _distribution(f"{path}: {key}", allowed, (recipe_keys() | method_keys(method))[key].hint)
    return space


def _refuse_malformed(where: str, allowed: Any) -> None:
    """Refuse what is neither choices nor an interval of numbers."""
    if isinstance(allowed, list) and allowed:
        return
    if not isinstance(allowed, dict) or not {"low", "high"} <= allowed.keys() <= set(INTERVAL):
        raise UserError(f"{where}: {quoted(allowed)} must be a list, or {{low: …, high: …}}, perhaps with log or step")
    if wrong := [each for each, value in allowed.items() if not isinstance(value, int | float)]:
        raise UserError(f"{where}: {wrong[0]}: {quoted(allowed[wrong[0]])} is not a number; write 1.0e-5, not 1e-5")
    if wrong := [each for each, value in allowed.items() if not math.isfinite(value)]:
        raise UserError(f"{where}: {wrong[0]}: {allowed[wrong[0]]} is not finite; give a number")


def _distribution(where: str, allowed: Any, hint: Any) -> BaseDistribution:
    """Return the choices or the interval of a key, by its type: YAML reads the end 1 as whole, also of a float."""
    if isinstance(allowed, list):
        # Optuna stores single values; a list or a mapping, such as the betas of AdamW, is one text to a recipe.
        choices = [as_word(v) if isinstance(v, list | dict) else v for v in allowed]
        if min(len(set(choices)), len(set(map(str, choices)))) < len(choices):
            raise UserError(f"{where}: {quoted(allowed)} has a choice twice; leave one of them out")
        return CategoricalDistribution(choices)
    kind, _ = optional(hint)
    kind = (*typing.get_args(kind), kind)[0]  # of a list, that of its items: a number is a list of one
    parts = [each for each in ("low", "high", "step") if isinstance(allowed.get(each), float)]
    if kind is not float and parts:
        raise UserError(f"{where}: {parts[0]}: {allowed[parts[0]]} must be a whole number, as the key is; correct it")
    try:
        return FloatDistribution(**allowed) if kind is float else IntDistribution(**allowed)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def points(space: Space) -> float:
    """Return the number of points of a grid, and infinity for another space.

    Example:
        >>> points({"batch_size": CategoricalDistribution([32, 64]), "epochs": CategoricalDistribution([1, 2, 3])})
        6
    """
    sizes = [len(each.choices) if isinstance(each, CategoricalDistribution) else math.inf for each in space.values()]
    return math.prod(sizes)
