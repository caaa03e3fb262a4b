"""The keys of a recipe that decide the numbers of its runs."""

from __future__ import annotations

from .keys import Recipe, recipe_keys

# Keys that change no result. They may differ when a run is resumed.
FREE_KEYS = {"output_dir", "overwrite", "force", "report_to", "log_steps", "recipe", "num_workers"}
FREE_KEYS |= {"show_sentences"}
# Keys added since receipts were first written. At its default, such a key does not change the receipt of a run.
LATER_KEYS = {"optimizer", "teachers", "teacher_share", "dropout", "fraction_seed", "soup", "padded"}
LATER_KEYS |= {"stream_shards", "select_by", "flow", "flow_sentences", "flow_epochs", "flow_learning_rate"}
LATER_KEYS |= {"whitening_power", "whitening_updates", "flow_start", "flow_dropout", "flow_optimizer"}
LATER_KEYS |= {"rmsprop_alpha", "lr_boundaries", "lr_factors", "patience"}
LATER_KEYS |= {"lower_case", "served_length"}


def deciding_keys(recipe: Recipe) -> dict[str, object]:
    """Return the keys that a run's numbers depend on, with their values. The seed is left out.

    Example:
        >>> "batch_size" in deciding_keys(Recipe()), "output_dir" in deciding_keys(Recipe())
        (True, False)
    """
    later = {name: key.default for name, key in recipe_keys().items() if name in LATER_KEYS}
    values = {name: value for name, value in recipe.to_dict().items() if name not in FREE_KEYS | {"seeds"}}
    return {name: value for name, value in values.items() if name not in later or value != later[name]}
