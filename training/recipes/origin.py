"""The keys that decide the numbers of a run, and what a run has changed of the recipe that it started from."""

from __future__ import annotations

from .keys import Recipe
from .reading import file_name, load_recipe, recipe_names

# Keys that change no result. They may differ when a run is resumed.
FREE_KEYS = {"output_dir", "overwrite", "force", "report_to", "log_steps", "recipe", "num_workers", "show_sentences"}
# Keys that may differ from the recipe's. They name the run or its revisions, or choose how the same thing is computed.
INCIDENTAL = FREE_KEYS | {"seeds", "name", "license", "language", "eval_data", "eval_batch_size"}
INCIDENTAL |= {"mixed_precision", "attn_implementation", "gradient_checkpointing", "mini_batch_size", "padded"}
INCIDENTAL |= {"base_revision", "generator_revision", "dataset_revision", "nli_dataset_revision"}
# The keys that name the unlabelled and the labelled texts. A file is the same as a data set's file of that name.
TEXT_KEYS = (("train_file", "dataset_file", "dataset"), ("nli_file", "nli_dataset_file", "nli_dataset"))


def deciding_keys(recipe: Recipe) -> dict[str, object]:
    """Return the keys that a run's numbers depend on, with their values. The seed is left out."""
    return {name: value for name, value in recipe.to_dict().items() if name not in FREE_KEYS | {"seeds"}}


def changes(recipe: Recipe) -> list[str] | None:
    """The keys of a run that matter for its results and differ from the zoo's recipe; None if it started from none.

    Example:
        >>> changes(load_recipe("simcse-bert-base-uncased", {"seeds": "1, 2", "batch_size": "128"}))
        ['batch_size']
    """
    if recipe.recipe not in recipe_names():
        return None
    return differences(recipe, load_recipe(str(recipe.recipe)))


def differences(recipe: Recipe, original: Recipe) -> list[str]:
    """The keys that matter for the results and differ between two recipes.

    Example:
        >>> differences(Recipe(batch_size=8, name="a"), Recipe())
        ['batch_size']
    """
    run, zoo = recipe.to_dict(), original.to_dict()
    texts = {key for keys in TEXT_KEYS for key in keys}
    changed = [key for key in run | zoo if key not in INCIDENTAL | texts and run.get(key, ...) != zoo.get(key, ...)]
    if "none" in (run["eval_data"], zoo["eval_data"]) and run["eval_data"] != zoo["eval_data"]:
        changed.append("eval_data")  # dev pairs choose the checkpoint of one of them only
    for keys in TEXT_KEYS:
        expected = _texts(zoo, keys)
        if expected and _texts(run, keys) != expected:  # a recipe without texts needs a file of the user
            changed += [key for key in keys if run[key] != zoo[key]]
    return changed


def _texts(values: dict, keys: tuple[str, ...]) -> str | None:
    named = next((values[key] for key in keys if values[key]), None)
    return file_name(named).removesuffix(".gz") if named else None


def origin(recipe: Recipe) -> dict:
    """What a results file says of a run's recipe: its method, name and base model, and what was changed."""
    return {
        "method": recipe.method,
        "recipe": recipe.recipe,
        "base_model": recipe.base_model,
        "changed": changes(recipe),
    }
