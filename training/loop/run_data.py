"""The batches of a run: training sentences, labelled pairs, or both."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

import datasets
import pyarrow as pa
import pyarrow.compute as pc
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from ..data.batches import Batches
from ..data.collation import tokenize_once
from ..data.streams import StreamedBatches, StreamPosition, reading_stream
from ..data.teachers import BaseTeacher, Teachers
from ..data.texts import load_labelled, load_sentences, streamed_files
from ..errors import UserError
from ..loading.served_encoder import load_as_served
from ..recipes import Recipe
from ..recipes.keys import BASE_TEACHER
from .building import Build
from .distributed.hosts import first_of_each_node

ROWS_AT_ONCE = 100_000
# Labelled rows on which a method computes its diagnostics.
PROBE = 256
# Workers of a run on a GPU: while one collates a batch, that of the other is ready.
DEVICE_WORKERS = 2
logger = logging.getLogger(__name__)


def refuse_one_sentence(sentences: int) -> None:
    """Refuse a single sentence: the others are its negatives, and without any the loss is 0."""
    if sentences == 1:
        raise UserError("the training data has one sentence; give two or more, which are each other's negatives")


class RunData:
    """The training data of a recipe, for one seed and one process. Only the texts that a stage needs are read."""

    def __init__(self, recipe: Recipe, seed: int, built: Build, accelerator: Accelerator):
        self.recipe, self.built, self.device = recipe, built, accelerator.device
        self.joint = built.model.config.nli_weight > 0
        # What decides the batches of this process.
        self.order = {"seed": seed, "rank": accelerator.process_index, "world": accelerator.num_processes}
        self.order["length_window"] = recipe.length_window
        workers = recipe.num_workers
        if workers is None:
            on_device = 1 if recipe.streaming else DEVICE_WORKERS
            by_model = recipe.teachers == [BASE_TEACHER]  # it encodes on the device, where a fork cannot
            workers = 0 if self.device.type == "cpu" or by_model else on_device
        if workers:  # a worker is a fork, which the threads of tokenizers do not survive
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.loader = partial(
            DataLoader,
            batch_size=None,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # its own, so that iterating does not draw from the generator of dropout
        )
        self.batches_per_epoch = self.nli_batches_per_epoch = math.inf
        # The batches from one number to another.
        self.sentence_batches: Callable[[int, int], Iterable[dict[str, Any]]]
        self.labelled_batches: Callable[[int, int], Iterable[dict[str, Any]]]
        self.numbered: dict[str, Batches] = {}
        self.streamed: list[str] = []  # the local files of a streamed data set
        # The beginning of the block that training has reached, if the data are a stream.
        self.position: StreamPosition | None = None
        if recipe.max_steps != 0 and recipe.streaming:
            self._stream_sentences()
        elif recipe.max_steps != 0:
            self._load_sentences()
        if self.joint or recipe.nli_steps or recipe.nli_epochs:
            self._load_labelled()

    def _load_sentences(self) -> None:
        recipe = self.recipe
        teachers: Teachers | BaseTeacher | None = None
        with first_of_each_node():
            sentences = load_sentences(recipe)
            if recipe.teachers:
                teachers = self._teachers(list(sentences["0"]))
            rows = tokenize_once(sentences, **self.built.tokenizing())
        collate = self.built.collator()
        batches = Batches(rows, collate, teachers=teachers, batch_size=recipe.batch_size, **self.order)
        self.batches_per_epoch = batches.batches_per_epoch
        self.numbered["sentences"] = batches
        refuse_one_sentence(len(rows))
        collate([rows[0]])  # a wrong number of columns is refused here, in one line, and not in a worker
        logger.info("%d sentences, %d batches per epoch", len(rows), batches.batches_per_epoch)
        self.sentence_batches = lambda start, stop: self.loader(batches, sampler=range(start, stop))

    def _teachers(self, sentences: list[str]) -> Teachers | BaseTeacher:
        """Return the teachers of rank distillation: vectors on disk, or the base model as it is served."""
        recipe = self.recipe
        if recipe.teachers != [BASE_TEACHER]:
            return Teachers(cast(list[str], recipe.teachers), sentences, recipe.teacher_share)
        served = load_as_served(str(recipe.base_model), recipe.base_revision, self.built.served)
        if served is None:
            raise UserError(
                f"teachers: {recipe.base_model} is a bare encoder, which has no vectors to keep; give a base_model "
                "that is served, or another teacher"
            )
        return BaseTeacher(served.to(self.device), sentences)

    def _stream_sentences(self) -> None:
        recipe, stream = self.recipe, load_sentences(self.recipe)
        self.streamed = streamed_files(recipe)
        with reading_stream():
            first = list(stream.take(2))
        refuse_one_sentence(len(first))
        options = {
            "batch_size": recipe.batch_size,
            "shuffle_buffer": recipe.shuffle_buffer,
            # The first rows of a stream are those of its first shards.
            "shards": 1 if recipe.max_train_sentences else stream.num_shards,
            "own_shards": recipe.stream_shards,
            **self.order,
        }
        collate = self.built.collator(texts=True)

        def batches_from(start: int, stop: int) -> Iterator[dict[str, Any]]:
            batches = StreamedBatches(stream, collate, start=start, position=self.position, **options)
            for item in self.loader(batches):
                if "error" in item:
                    raise UserError(item["error"])
                self.position = item.pop("position")
                yield item

        self.sentence_batches = batches_from

    def _load_labelled(self) -> None:
        if (classes := self.built.model.config.nli_classes) == 0:
            raise UserError(
                "nli_classes: training on labelled pairs needs --nli_classes 2 (triplets) or 3 (labelled pairs)"
            )
        with first_of_each_node():
            rows = tokenize_once(load_labelled(self.recipe, classes), **self.built.tokenizing(labelled=True))
        collate = self.built.collator(labelled=True)
        batches = Batches(rows, collate, batch_size=self.recipe.nli_batch_size, **self.order)
        self.nli_batches_per_epoch = batches.batches_per_epoch
        self.numbered["labelled"] = batches
        logger.info("%d labelled rows, %d batches per epoch", len(rows), batches.batches_per_epoch)
        self.probe = lambda: collate([{**rows[i]} for i in range(min(PROBE, len(rows)))])
        self.labelled_batches = lambda start, stop: self.loader(batches, sampler=range(start, stop))

    def checksums(self) -> dict[str, str]:
        """Return a checksum of the rows of each data set that is not a local file, by its key in the recipe.

        Without a pinned revision, a data set of the Hub can change. The rows of a stream have no checksum.
        """
        rows = {kind: batches.sentences for kind, batches in self.numbered.items()}
        files = {"sentences": self.recipe.train_file, "labelled": self.recipe.nli_file}
        keys = {"sentences": "dataset", "labelled": "nli_dataset"}
        return {keys[kind]: rows_sha256(rows[kind]) for kind in rows if not files[kind]}

    def batches(self, stage: str, start: int, stop: int, before: int) -> Iterator[dict[str, Any]]:
        """Yield the arguments of the model's forward, for the batches from `start` to `stop` of a stage.

        Args:
            stage: `nli` yields labelled pairs. `contrastive` yields sentences, with labelled pairs in joint training.
            start: first batch, counted from the beginning of the stage.
            before: batches in earlier stages. Labelled pairs continue after those.
        """
        sources = []
        if stage == "contrastive":
            sources.append(("", iter(self.sentence_batches(start, stop))))
        if stage == "nli" or self.joint:
            sources.append(("nli_", iter(self.labelled_batches(before + start, before + stop))))
        for _ in range(start, stop):
            yield {prefix + name: value for prefix, source in sources for name, value in next(source).items()}

    def rows(self, stage: str, start: int, stop: int, before: int) -> dict[str, list[int]]:
        """Return the numbers of the rows that `batches` yields on all processes.

        Rows are counted from 0 after blank rows were removed. The rows of a stream have no numbers.
        """
        batches = {}
        if stage == "contrastive":
            batches["sentences"] = range(start, stop)
        if stage == "nli" or self.joint:
            batches["labelled"] = range(before + start, before + stop)
        return {
            kind: [row for number in numbers for row in self.numbered[kind].rows(number)]
            for kind, numbers in batches.items()
            if kind in self.numbered
        }


def rows_sha256(rows: datasets.Dataset) -> str:
    """Return a checksum of tokenised rows and their labels, in order."""
    digest = hashlib.sha256()
    for table in rows.with_format("arrow").iter(ROWS_AT_ONCE):
        for name in sorted(table.column_names):
            column = table[name].combine_chunks()
            digest.update(name.encode())
            if pa.types.is_list(column.type):
                digest.update(pc.list_value_length(column).to_numpy().data)
                column = column.flatten()
            digest.update(column.to_numpy().data)
    return digest.hexdigest()
