"""Estimates of updates, hours and memory of a run, before it is started.

They count the multiplications of the encoder's layers. One measurement calibrates them, in DiffAug's table 4:
supervised SimCSE on BERT-base, three epochs of 275,601 triplets in batches of 128, takes 36 minutes and 10 GB on one
Quadro RTX 8000. Another device needs another time, and so do sentences that are much shorter than `max_length`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

from ..recipes import Recipe
from ..recipes.keys import STS_SENTENCES, STSB_SENTENCES

# Rows of the data sets in the recipes.
DATASET_ROWS = {
    "princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt": 1_000_000,
    "princeton-nlp/datasets-for-simcse/nli_for_simcse.csv": 275_601,
    "sentence-transformers/all-nli/pair-class/train-*.parquet": 942_069,
    STSB_SENTENCES: 17_256,
    STS_SENTENCES: 89_192,
}
# Layers, width and parameters where the model is not a local directory.
BASE, LARGE, MULTILINGUAL = (12, 768, 110e6), (24, 1024, 335e6), (12, 768, 178e6)
ANCHOR_LENGTH, ANCHOR_TEXTS = 32, 275_601 * 3 * 3  # word pieces, texts encoded
ANCHOR_SECONDS, ANCHOR_BYTES = 36 * 60, 10e9
# Bytes of a trained parameter: itself, its gradient and the two moments of AdamW, in float32.
TRAINED, FROZEN = 16, 4


@dataclass(frozen=True)
class Estimate:
    """Of one run: updates, hours and GB of memory on one Quadro RTX 8000; None where it cannot be known."""

    updates: int | None
    hours: float | None
    gigabytes: float


def estimate(recipe: Recipe) -> Estimate:
    """Estimate a run.

    Example:
        >>> from csezoo.training.recipes import load_recipe
        >>> cost = estimate(load_recipe("simcse-sup-bert-base-uncased", {"batch_size": 128}))
        >>> cost.updates, round(cost.hours, 1), round(cost.gigabytes)
        (6462, 0.6, 10)
    """
    from transformers import BertConfig  # takes seconds, like the next one

    from csezoo.modeling import method

    contrastive, labelled = _updates(recipe)
    layers, width, parameters = shape(recipe.base_model)
    backbone = BertConfig(num_hidden_layers=layers, hidden_size=width)
    config = method(recipe.method)[0](backbone_config=backbone, **recipe.model)  # says what training has to compute
    # A text costs a forward pass and a backward pass of twice its size. Other passes are counted in these units.
    views = len(config.view_columns(len(recipe.text_columns or [""])))
    per_text = layers * width**2 * recipe.max_length
    anchor = ANCHOR_SECONDS / (ANCHOR_TEXTS * BASE[0] * BASE[1] ** 2 * ANCHOR_LENGTH)
    batch = recipe.batch_size * recipe.gradient_accumulation_steps
    hours = None
    if contrastive is not None and labelled is not None:
        texts = contrastive * batch * views * config.passes_per_text
        pairs = (labelled + (contrastive if recipe.model.get("nli_weight") else 0)) * recipe.nli_batch_size
        texts += pairs * recipe.gradient_accumulation_steps * (3 if config.nli_classes == 2 else 2)
        hours = texts * per_text * anchor / 3600
    activation = (ANCHOR_BYTES - BASE[2] * TRAINED) / (128 * 3 * ANCHOR_LENGTH * BASE[0] * BASE[1])
    trained, frozen = config.encoders_in_training
    rows = (recipe.mini_batch_size or recipe.batch_size) * views * (2 if recipe.generator else 1)
    weights = parameters * (TRAINED * trained + FROZEN * frozen)
    memory = weights + activation * rows * recipe.max_length * layers * width
    return Estimate(None if contrastive is None or labelled is None else contrastive + labelled, hours, memory / 1e9)


def _updates(recipe: Recipe) -> tuple[int | None, int | None]:
    """Return the updates on sentences and on labelled pairs, rounded as `plan_stages` does."""

    def of_epochs(rows: int | None, share: float, batch_size: int, epochs: float) -> int | None:
        batches = rows and math.ceil(rows * share / batch_size)
        return batches and math.ceil(batches * epochs / recipe.gradient_accumulation_steps)

    contrastive, labelled = recipe.max_steps, recipe.nli_steps
    if contrastive is None:
        rows = _rows(recipe.train_file, recipe.dataset, recipe.dataset_file)
        rows = rows and min(rows, recipe.max_train_sentences or rows)
        contrastive = of_epochs(rows, recipe.train_fraction, recipe.batch_size, recipe.epochs)
    if recipe.nli_epochs:
        rows = _rows(recipe.nli_file, recipe.nli_dataset, recipe.nli_dataset_file)
        return contrastive, of_epochs(rows, recipe.nli_fraction, recipe.nli_batch_size, recipe.nli_epochs)
    return contrastive, labelled


def _rows(file: str | None, dataset: str | None, dataset_file: str | None) -> int | None:
    if file is None:
        return DATASET_ROWS.get(f"{dataset}/{dataset_file or ''}".rstrip("/"))
    return _lines(file) if Path(file).is_file() and not file.endswith((".parquet", ".gz")) else None


@functools.cache
def _lines(file: str) -> int:
    with Path(file).open("rb") as lines:
        return sum(1 for _ in lines)


@functools.cache
def shape(model: str | None) -> tuple[int, int, float]:
    """Return layers, width and parameters of an encoder: of a local directory from its configuration.

    Example:
        >>> shape("google-bert/bert-large-uncased")[:2]
        (24, 1024)
    """
    if model and (Path(model) / "config.json").is_file():
        from transformers import AutoConfig  # takes seconds, and a list of items does not need it

        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        layers, width = config.num_hidden_layers, config.hidden_size
        return layers, width, 12 * layers * width**2 + config.vocab_size * width
    name = model or ""
    return LARGE if "large" in name else MULTILINGUAL if "multilingual" in name else BASE
