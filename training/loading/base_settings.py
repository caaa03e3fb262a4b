"""A base model that is served already: what its repository says holds for the run where its recipe says nothing."""

from __future__ import annotations

import logging
from typing import Any

from ..recipes import Recipe, file_name, make_recipe
from ..recipes.reading import as_word
from .served_encoder import ServedEncoder, served_encoder

logger = logging.getLogger(__name__)


def follow_base(recipe: Recipe) -> tuple[Recipe, ServedEncoder | None]:
    """Return a recipe with the keys that the repository of its base model tells, and what else it tells.

    A key that the recipe's file or the command line sets is stronger than the repository, whatever it is for, and is
    named. A key that neither sets is the repository's. A bare encoder tells nothing.

    Raises:
        UserError: the repository cannot be taken over, with the reason.
    """
    served = served_encoder(recipe.base_model, recipe.base_revision) if recipe.base_model else None
    if served is None:
        return recipe, None
    own = {**recipe.to_dict(), "name": recipe.name}
    name = file_name(served.name)
    taken = {key: value for key, value in served.keys.items() if key not in recipe.given}
    for key, value in served.keys.items():
        if key in recipe.given and own[key] != value:
            logger.warning("%s: %s is used; %s is served with %s", key, _shown(own[key]), name, _shown(value))
    told = [f"{key} {_shown(value)}" for key, value in taken.items() if value not in (None, False)]
    if told:
        logger.info("as %s is served: %s", name, ", ".join(told))
    return make_recipe({**own, **taken}), served


def _shown(value: Any) -> str:
    return as_word(value)[:60]
