"""The texts on a recipe's card: what its methods do, their limits, what to cite.

`cards/NAME.yaml` in the folder of a method describes a method, or an addition such as a prompt or a whitening:

* `description`, `limits`, `citation`: texts, the last one in BibTeX. They contain no scores: scores come from results
  files and from `published`.
* `variants`: other files that replace this one, each with the keys and values of the recipes that it is for.
* `published`: the rows of the papers' tables by recipe, see `published.published`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ..recipes import METHOD_FOLDERS, QUICKSTARTS, Recipe, file_name
from ..tables import code

NLI = (
    "Much of the NLI data is SNLI: captions of photographs, and sentences that crowd workers wrote about them. They "
    "are short and concrete, and known to contain stereotypes of gender, age and origin (Rudinger et al., 2017)."
)
DATA_LIMITS = {
    "wiki1m_for_simcse.txt": (
        "The training sentences are from English Wikipedia and share its topics and biases. Questions and everyday "
        "language are rare in them."
    ),
    "nli_for_simcse.csv": NLI,
    "pair-class/train-*.parquet": NLI,
    "stsb-sentences": (
        "The training sentences are all sentences of STS-B, including those of its test pairs, without the scores. "
        "The STS-B score is therefore not measured on unseen sentences."
    ),
    "sts-sentences": (
        "The training sentences are all sentences of the seven STS data sets, including those of the test pairs, "
        "without the scores. No STS score is therefore measured on unseen sentences."
    ),
}
WORLD = (
    "The model was trained on a small artificial world. It shows how the tools work; do not use it for other texts."
)

BIASES = "The vectors also contain the biases about people and groups that the base model learned."
UNCASED = "The model does not distinguish upper and lower case."

# What becomes the vector of a text, or enters the layers that follow.
POOLED = {
    "cls": "the last layer's vector of the first token",
    "mean": "the mean of the last layer's vectors over the tokens",
    "max": "the maximum of the last layer's vectors over the tokens",
    "last": "the last layer's vector of the last token",
    "first_last_mean": "the mean over the tokens of the average of the first and the last layer",
    "embeddings_last_mean": "the mean over the tokens of the average of the embeddings and the last layer",
    "last2_mean": "the mean over the tokens of the average of the last two layers",
    "prompt": "the last layer's vector of the mask token in the prompt",
}


@functools.cache
def method_entries() -> dict[str, dict[str, Any]]:
    """Return the entries of all methods, by name."""
    files = sorted(METHOD_FOLDERS.glob("*/cards/*.yaml"), key=lambda path: path.stem)
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}


def trained(recipe: Recipe) -> bool:
    """Return whether a recipe trains anything at all."""
    return recipe.max_steps != 0 or bool(recipe.nli_steps or recipe.nli_epochs)


def text_names(recipe: Recipe) -> list[str]:
    """Return the names of the files in `cards/` that apply to a recipe.

    These are its methods, in the order of training, and additions such as prompts. A new method has no text until it
    has a file.

    Example:
        >>> from csezoo.training.recipes import load_recipe
        >>> text_names(load_recipe("whitening-bert-base-uncased")), text_names(load_recipe("promptbert-roberta-base"))
        (['untrained', 'whitening'], ['simcse', 'promptbert'])
    """
    names = recipe.method.split("+") if recipe.max_steps != 0 else []
    if len(recipe.text_columns or []) > 1:
        names = ["simcse-sup" if name == "simcse" else name for name in names]
    names = [variant(name, recipe) for name in names if name in method_entries()]
    if not trained(recipe):
        names = ["untrained"] if recipe.served_length is None else []
    of_labels = ["sbert"] if recipe.model.get("nli_classes") == 3 else []
    contrastive = recipe.model.get("nli_objective") == "contrastive"
    of_labels += ["simcse-sup"] if contrastive and recipe.reads_labelled_pairs else []
    names = [*of_labels, *names] if recipe.nli_steps or recipe.nli_epochs else [*names, *of_labels]
    if recipe.model.get("pooling") == "prompt":
        names.append("promptbert")
    if recipe.teachers:
        names.append("rankcse")
    if recipe.whitening:
        names.append("whitening")
    if recipe.flow:
        names.append("flow")
    return list(dict.fromkeys(names))


def variant(name: str, recipe: Recipe) -> str:
    """Return the name of the entry for a recipe: a variant of its method's entry, or that entry itself."""
    for other, keys in method_entries()[name].get("variants", {}).items():
        if all(recipe.model.get(key) == value for key, value in keys.items()):
            return other
    return name


def description(recipe: Recipe) -> str:
    """Return a paragraph for each method, after that of the recipe if it has one, and what its pooling is."""
    of_recipes = [entry.get("recipes", {}).get(recipe.recipe) for entry in method_entries().values()]
    of_methods = [method_entries()[name]["description"] for name in text_names(recipe)]
    pooled = POOLED.get(str(recipe.model.get("pooling")))  # by the base model or the recipe, whatever the method
    return "\n\n".join([*filter(None, of_recipes), *of_methods, *([f"The pooling takes {pooled}."] if pooled else [])])


def citations(recipe: Recipe) -> str:
    """Return the BibTeX entries of the methods. Two of them may be of one paper."""
    return "\n\n".join(dict.fromkeys(method_entries()[name]["citation"] for name in text_names(recipe)))


@functools.cache
def all_ideas() -> dict[str, Path]:
    """Return the pictures that explain the ideas of methods, by the names of their texts. Additions have none."""
    return {path.stem: path for path in METHOD_FOLDERS.glob("*/cards/*.svg")}


def ideas(names: Iterable[str]) -> list[Path]:
    """Return the pictures that explain the ideas of these texts."""
    return [all_ideas()[name] for name in names if name in all_ideas()]


def limits(recipe: Recipe, *, learned: bool = True) -> list[str]:
    """Return the known limits of the methods, the data, the base model and the length.

    Args:
        learned: whether the weights are those after any update, if there were updates.
    """
    learned = learned and trained(recipe)
    lines = [method_entries()[name]["limits"] for name in text_names(recipe)]
    if recipe.recipe in QUICKSTARTS:
        return [*lines, WORLD]
    reads = (learned and recipe.max_steps != 0) or recipe.whitening or recipe.flow
    sources = [(recipe.train_file, recipe.dataset_file or recipe.dataset)] if reads else []
    if learned and recipe.reads_labelled_pairs:
        sources.append((recipe.nli_file, recipe.nli_dataset_file or recipe.nli_dataset))
    for file, dataset in sources:
        if file:
            read = f"{'trained on' if learned else 'fitted to'} {code(file_name(file))}"
            lines.append(f"The model was {read} and inherits the gaps and biases of that text.")
        elif dataset in DATA_LIMITS:
            lines.append(DATA_LIMITS[dataset])
    if recipe.base_model and recipe.base_model.endswith("uncased"):
        lines.append(UNCASED)
    languages = recipe.base_model and any(word in recipe.base_model for word in ("multilingual", "xlm-roberta"))
    if languages and recipe.language == "en":
        lines.append(
            "The model was trained on English sentences only. The effect on other languages was not measured."
        )
    cut = recipe.served_length is None or recipe.max_length < recipe.served_length
    if learned and recipe.tells_length and cut:
        lines.append(
            f"Training cut sentences after {recipe.max_length} word pieces. Longer texts are embedded up to the limit "
            "of the encoder, but the model was not trained on them."
        )
    lines.append(BIASES)
    return list(dict.fromkeys(lines))
