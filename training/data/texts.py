"""Training texts as a recipe asks for them, checked: sentences, pairs and triplets, or labelled pairs."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from pyarrow import compute

from csezoo.modeling.contrastive.natural_language_inference import LABELS

from ..errors import UserError, one_line
from ..evaluation.tasks.sts import STSB_SPLITS, load_all_sentences, load_task
from ..files import UNREADABLE, refuse_utf16
from ..recipes import Recipe
from ..recipes.keys import STS_SENTENCES, STSB_SENTENCES
from .json_files import OTHER
from .local_files import is_saved, open_file, raise_bad_utf8
from .sources import Rows, Source

logger = logging.getLogger(__name__)
BLANK = " "  # a missing positive or hard negative, as in SimCSE's release


def load_sentences(recipe: Recipe) -> Rows:
    """Load the training texts of a recipe, with one numbered column for each of `text_columns`.

    Column `0` is the anchor, `1` the positive, `2` the hard negative. Rows with a blank anchor are skipped and
    counted. Any other blank cell becomes one space, as in SimCSE's release.

    Raises:
        UserError: the file, its encoding or its columns cannot be used, or the Hub cannot be reached. The error names
            the option to set.
    """
    if not recipe.train_file and recipe.dataset in (STSB_SENTENCES, STS_SENTENCES):
        return _keep(_sts_sentences(recipe), recipe.train_fraction, recipe.fraction_seed).rename_column("text", "0")
    source = Source(
        "train_file",
        recipe.train_file,
        recipe.dataset,
        recipe.dataset_file,
        recipe.dataset_revision,
        streaming=recipe.streaming,
    )
    loaded = source.read()
    columns = source.columns(source.names(loaded), recipe.text_columns, "text_columns")
    if not 1 <= len(columns) <= 3:
        raise UserError(f"text_columns: expected one to three columns, got {len(columns)}")
    if columns == ["sentence1", "sentence2", "score"]:
        raise UserError("text_columns: a score is no text; graded pairs choose a checkpoint, give them as --dev_file")
    loaded = loaded.select_columns(columns)
    if first := recipe.max_train_sentences:
        loaded = loaded.take(first if recipe.streaming else min(first, len(loaded)))
    if recipe.streaming:
        return loaded.map(_clean, batched=True, fn_kwargs={"columns": columns}, remove_columns=columns)
    return _keep(_checked(source, loaded, columns), recipe.train_fraction, recipe.fraction_seed)


def load_texts(file: str, column: str | None = None) -> list[str]:
    """Load the texts of a file that are not blank.

    Args:
        column: of the texts; by default `text`, or the only column.

    Raises:
        UserError: as in `load_sentences`.
    """
    source = Source("file", file)
    loaded = source.read()
    columns = source.columns(source.names(loaded), [column] if column else None, "column")
    return list(_checked(source, loaded, columns)["0"])


def streamed_files(recipe: Recipe) -> list[str]:
    """Return the files that a recipe streams from a local directory, in order; none for any other data."""
    if recipe.train_file or not recipe.streaming or not os.path.isdir(str(recipe.dataset)):
        return []
    if is_saved(str(recipe.dataset)):
        return sorted(map(str, Path(str(recipe.dataset)).rglob("*.arrow")))
    source = Source("train_file", None, recipe.dataset, recipe.dataset_file)
    return source.files_in(str(recipe.dataset))


def stream_texts(file: str, column: str | None = None) -> Iterator[str]:
    """Yield the texts of a file of any kind in constant memory, one for each row, including blank ones.

    Args:
        column: of the texts; by default `text`, or the only column.

    Raises:
        UserError: the file, its encoding or its columns cannot be used, or a row has no text.
    """
    source = Source("file", file, streaming=True)
    loaded = source.read()
    (column,) = source.columns(source.names(loaded), [column] if column else None, "column")
    batches, rows = loaded.select_columns([column]).iter(batch_size=1000), 0
    while True:
        with source.reading():
            batch = next(batches, None)
        if batch is None:
            return
        for text in batch[column]:
            rows += 1
            if not isinstance(text, str):
                raise UserError(f"{file}, row {rows}: column {column} must be text, got {text!r}")
            yield text


def stream_lines(file: str) -> Iterator[str]:
    """Yield the lines of a plain text file, also as `.gz`, with the blank ones."""
    path = Path(file)
    if not path.is_file():
        raise UserError(f"file: {path} {'is not a file' if path.exists() else 'does not exist'}")
    try:
        with open_file(path) as lines:
            refuse_utf16(path, lines.read(4096))
            lines.seek(0)
            yield from io.TextIOWrapper(lines, encoding="utf-8-sig")
    except (UnicodeDecodeError, *UNREADABLE) as error:
        raise_bad_utf8(path)
        raise UserError(f"{path} could not be read ({one_line(error)})") from error


def load_labelled(recipe: Recipe, classes: int) -> datasets.Dataset:
    """Load labelled sentence pairs: triplets in columns `0`, `1`, `2`, or pairs in `0`, `1` with a number in `label`.

    Args:
        classes: 2 reads triplets (premise, entailed and contradicted hypothesis). 3 reads pairs with a label, by name
            or by number as on the Hub (0 entailment, 1 neutral, 2 contradiction). Pairs without a gold label ("-",
            -1) are left out.

    Raises:
        UserError: as in `load_sentences`, or a label is not in `natural_language_inference.LABELS`.
    """
    source = Source(
        "nli_file", recipe.nli_file, recipe.nli_dataset, recipe.nli_dataset_file, recipe.nli_dataset_revision
    )
    loaded = source.read()
    if not {"sentence1", "sentence2", "score"} - {*source.names(loaded)}:
        raise UserError(
            f"nli_file: {source.name} has graded pairs, which choose the best checkpoint and do not train; give them "
            "as --dev_file, and labelled pairs or triplets here"
        )
    if recipe.nli_columns is None or len(recipe.nli_columns) != 3:
        expected = "premise, entailed and contradicted hypothesis" if classes == 2 else "premise, hypothesis and label"
        raise UserError(f"nli_columns: name three columns of {source.name}: {expected}")
    columns = source.columns(source.names(loaded), recipe.nli_columns, "nli_columns")
    loaded = loaded.select_columns(columns)
    if classes == 2:
        return _keep(_checked(source, loaded, columns), recipe.nli_fraction, recipe.fraction_seed)
    options = {"column": columns[2], "source": source.name}
    loaded = loaded.map(_number_labels, batched=True, with_indices=True, fn_kwargs=options, remove_columns=columns[2:])
    checked = _checked(source, loaded, columns[:2], others=[LABEL_NUMBER])
    return _keep(checked.rename_column(LABEL_NUMBER, "label"), recipe.nli_fraction, recipe.fraction_seed)


# The label numbers of NLI data sets on the Hub.
HUB_LABELS: dict[Any, str] = {0: "entailment", 1: "neutral", 2: "contradiction"}
HUB_LABELS |= {str(number): label for number, label in HUB_LABELS.items()}  # as a CSV file has them
# The column of label numbers until the text columns are renamed. A file may have texts in a column named `label`.
LABEL_NUMBER = "label: number"


def _number_labels(batch: dict[str, list], rows: list[int], column: str, source: str) -> dict[str, list]:
    """Replace labels by their index in `LABELS`, and drop rows without a gold label."""
    # By type, because a list has no hash and True equals 1.
    labels = [HUB_LABELS.get(label, label) if type(label) in (int, float, str) else label for label in batch[column]]
    kept = [i for i, label in enumerate(labels) if label not in ("-", -1, "-1", "", None)]
    if wrong := [i for i in kept if labels[i] not in LABELS]:
        place = f"{source}, row {rows[wrong[0]] + 1}"
        raise UserError(f"{place}: {column} {labels[wrong[0]]!r} must be one of {', '.join(LABELS)}")
    rest = {name: [values[i] for i in kept] for name, values in batch.items() if name != column}
    return {**rest, LABEL_NUMBER: [LABELS.index(labels[i]) for i in kept]}


def _sts_sentences(recipe: Recipe) -> datasets.Dataset:
    """Return both sentences of every pair, with duplicates: of STS-B (SG-OPT), or of all STS data sets (ConSERT)."""
    if recipe.eval_data == "none":
        raise UserError(f"dataset: {recipe.dataset} needs --eval_data hub, or a directory in SentEval's layout")
    if recipe.dataset == STS_SENTENCES:
        sentences = load_all_sentences(recipe.eval_data)
    else:
        pairs = [pair for split in STSB_SPLITS for pair in load_task(split, recipe.eval_data).pairs]
        sentences = [sentence for pair in pairs for sentence in pair]
    return datasets.Dataset.from_dict({"text": sentences[: recipe.max_train_sentences]})


def _keep(rows: datasets.Dataset, fraction: float, seed: int) -> datasets.Dataset:
    """Keep each row with a probability. The random choice depends only on the seed."""
    if fraction == 1:
        return rows
    kept = np.flatnonzero(np.random.default_rng(seed).random(len(rows)) < fraction)
    if len(kept) == 0:
        raise UserError(
            f"a fraction of {fraction} keeps none of {len(rows)} rows; raise train_fraction or nli_fraction"
        )
    return rows.select(kept)


def _checked(
    source: Source, loaded: datasets.Dataset, columns: list[str], others: list[str] | None = None
) -> datasets.Dataset:
    """Number the text columns, drop blank rows, and keep the other columns unchanged."""
    schema = loaded.features.arrow_schema
    kinds = {column: str(schema.field(column).type) for column in columns}
    if wrong := [column for column, kind in kinds.items() if kind not in ("string", "large_string", "null")]:
        found = "lists, objects or values of several types" if kinds[wrong[0]] == OTHER else kinds[wrong[0]]
        raise UserError(f"{source.name}: column {wrong[0]} must be text, got {found}")
    options = {"columns": columns, "others": others or []}
    with source.reading():
        kept = loaded.map(_clean, batched=True, fn_kwargs=options, remove_columns=columns, desc="Checking sentences")
    if len(kept) < len(loaded):
        logger.info("%s: %d blank lines skipped", source.name, len(loaded) - len(kept))
    if len(kept) == 0:
        raise UserError(f"{source.name} has no sentences; give a file with at least one")
    for view, column in enumerate(columns[1:], start=1):
        if blank := compute.sum(compute.equal(kept.data[str(view)], BLANK)).as_py():
            logger.warning("%s: %d texts in %s are blank, and are trained on as such", source.name, blank, column)
    return kept


def _clean(batch: dict[str, list], columns: list[str], others: tuple[str, ...] = ()) -> dict[str, list]:
    """Name the columns of texts `0`, `1`, `2`, drop rows with a blank anchor, and make other blank cells one space."""
    for column in columns:
        if wrong := [text for text in batch[column] if not isinstance(text, str | type(None))]:
            raise UserError(f"column {column} must be text, got {wrong[0]!r}")
    kept = [i for i, text in enumerate(batch[columns[0]]) if text is not None and text.strip()]

    def cell(text: str | None) -> str:
        return text if text is not None and text.strip() else BLANK

    texts = {str(view): [cell(batch[column][i]) for i in kept] for view, column in enumerate(columns)}
    return texts | {column: [batch[column][i] for i in kept] for column in others}
