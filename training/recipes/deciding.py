"""The keys of a recipe that decide the numbers of its runs."""

from __future__ import annotations

from .keys import Recipe

# Keys that change no result. They may differ when a run is resumed.
FREE_KEYS = {"output_dir", "overwrite", "force", "report_to", "log_steps", "recipe", "num_workers", "show_sentences"}


def deciding_keys(recipe: Recipe) -> dict[str, object]:
    """Return the keys that a run's numbers depend on, with their values. The seed is left out.

    Example:
        >>> "batch_size" in deciding_keys(Recipe()), "output_dir" in deciding_keys(Recipe())
        (True, False)
    """
    return {name: value for name, value in recipe.to_dict().items() if name not in FREE_KEYS | {"seeds"}}
