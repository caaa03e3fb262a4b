"""What a card says of a recipe in words: what its methods do, where they fall short, whom to cite.

`methods/NAME.yaml` has the entry of a method, or of a part that joins methods (a prompt, a whitening):

* `description`, `limits`, `citation`: texts, the last one BibTeX. No scores, which come from results files.
* `variants`: entries that a recipe has in the place of this one, each with the key and value that asks for it.
* `published`: the rows of the papers' tables by recipe, see `published.published`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from ..recipes import Recipe, file_name

ENTRIES = Path(__file__).parent / "methods"
# A picture of the idea behind each method; the pieces that join methods have none.
IDEAS = Path(__file__).parent / "ideas"
NLI = (
    "Much of the NLI data, SNLI's part, is captions of photographs and what crowd workers wrote to them: short, "
    "concrete, and known to carry stereotypes of gender, age and origin (Rudinger et al., 2017)."
)
DATA_LIMITS = {
    "wiki1m_for_simcse.txt": (
        "The training sentences are from English Wikipedia, with its topics and its slants; questions and everyday "
        "speech are rare in them."
    ),
    "nli_for_simcse.csv": NLI,
    "pair-class/train-*.parquet": NLI,
    "stsb-sentences": (
        "The training sentences are all of STS-B's, those of its test pairs too, though without their scores: the "
        "score on STS-B is not one on unseen sentences."
    ),
}
WORLD = "It knows a small made-up world alone: it shows how the tools work and embeds no other text."


@functools.cache
def method_entries() -> dict[str, dict[str, Any]]:
    """The entries of all methods, by name."""
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(ENTRIES.glob("*.yaml"))}


def trained(recipe: Recipe) -> bool:
    """Whether a recipe trains anything at all."""
    return recipe.max_steps != 0 or bool(recipe.nli_steps or recipe.nli_epochs)


def methods(recipe: Recipe) -> list[str]:
    """The entries that are true of a recipe; a method of one's own has none before it has a file.

    Example:
        >>> from csezoo.training.recipes import load_recipe
        >>> methods(load_recipe("whitening-bert-base-uncased")), methods(load_recipe("promptbert-roberta-base"))
        (['untrained', 'whitening'], ['simcse', 'promptbert'])
    """
    names = recipe.method.split("+") if recipe.max_steps != 0 else []
    if len(recipe.text_columns or []) > 1:
        names = ["simcse-sup" if name == "simcse" else name for name in names]
    names = [variant(name, recipe) for name in names if name in method_entries()]
    if not trained(recipe):
        names = ["untrained"]
    if recipe.model.get("pooling") == "prompt":
        names.append("promptbert")
    if recipe.model.get("nli_classes") == 3:
        names.append("sbert")
    if recipe.whitening:
        names.append("whitening")
    return names


def variant(name: str, recipe: Recipe) -> str:
    """The entry that a recipe has in the place of its method's own, if it asks for one."""
    for other, keys in method_entries()[name].get("variants", {}).items():
        if all(recipe.model.get(key) == value for key, value in keys.items()):
            return other
    return name


def description(recipe: Recipe) -> str:
    """A paragraph for each method."""
    return "\n\n".join(method_entries()[name]["description"] for name in methods(recipe))


def citations(recipe: Recipe) -> str:
    """BibTeX entries."""
    return "\n\n".join(method_entries()[name]["citation"] for name in methods(recipe))


def ideas(recipe: Recipe) -> list[Path]:
    """The pictures of the ideas of its methods."""
    return [path for name in methods(recipe) if (path := IDEAS / f"{name}.svg").is_file()]


def limits(recipe: Recipe) -> list[str]:
    """What is known to be wrong with its methods, its data, its base model and its length."""
    lines = [method_entries()[name]["limits"] for name in methods(recipe)]
    if recipe.recipe == "quickstart":
        return [*lines, WORLD]
    sources = [(recipe.train_file, recipe.dataset_file or recipe.dataset)] if recipe.max_steps != 0 else []
    sources.append((recipe.nli_file, recipe.nli_dataset_file or recipe.nli_dataset))
    for file, dataset in sources:
        if file:
            lines.append(f"It learned from `{file_name(file)}`: what is rare or slanted there is so in its vectors.")
        elif dataset in DATA_LIMITS:
            lines.append(DATA_LIMITS[dataset])
    if recipe.base_model and recipe.base_model.endswith("uncased"):
        lines.append("Upper and lower case are the same to it.")
    if recipe.base_model and "multilingual" in recipe.base_model:
        lines.append("English sentences alone tuned it; what that does to its other languages is not tested here.")
    if trained(recipe):
        lines.append(
            f"Training cut sentences after {recipe.max_length} word pieces. Longer texts are embedded, as far as the "
            "encoder reads, but nothing taught it how."
        )
    lines.append("What the base model learned of people and groups from its own texts is in these vectors too.")
    return list(dict.fromkeys(lines))
