"""The batches of a run: training sentences, labelled pairs, or both side by side."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

from ..data.batches import Batches, StreamedBatches
from ..data.collation import ViewCollator, tokenize_once
from ..data.texts import load_labelled, load_sentences
from ..errors import UserError
from ..recipes import Recipe
from .building import Build

# Labelled rows that a method's diagnostics are taken on.
PROBE = 256
logger = logging.getLogger(__name__)


class RunData:
    """What a recipe trains on, for one seed and one process.

    Args:
        recipe: says which texts there are; only those that some stage needs are read.
        seed: of the order.
        built: the model's tokenizer and templates.
        accelerator: this process's place among all.
    """

    def __init__(self, recipe: Recipe, seed: int, built: Build, accelerator: Accelerator):
        self.recipe = recipe
        config = built.model.config
        self.joint = config.nli_weight > 0
        self.share = {"seed": seed, "rank": accelerator.process_index, "world": accelerator.num_processes}
        self.share["length_window"] = recipe.length_window
        # A generator of its own: iterating must not draw from the one that dropout draws from.
        self.options: dict[str, Any] = {"pin_memory": accelerator.device.type == "cuda", "batch_size": None}
        self.options["generator"] = torch.Generator()
        self.place = (built.templates, built.serving_tokenizer.pad_token_id)
        cut = {"tokenizer": built.tokenizer, "length": built.sentence_length}
        self.batches_per_epoch = self.nli_batches_per_epoch = math.inf
        self.sentences: Callable[[int, int], DataLoader]
        self.labelled: Callable[[int, int], DataLoader]
        self.numbered: dict[str, Batches] = {}
        if recipe.max_steps != 0:
            self._load_sentences(built, cut, accelerator)
        if self.joint or recipe.nli_steps or recipe.nli_epochs:
            self._load_labelled(config.nli_classes, cut, accelerator)

    def _load_sentences(self, built: Build, cut: dict, accelerator: Accelerator) -> None:
        config = built.model.config
        share = {**self.share, "batch_size": self.recipe.batch_size}
        if self.recipe.streaming:
            share["shuffle_buffer"] = self.recipe.shuffle_buffer
            stream, collate = load_sentences(self.recipe), built.text_collator
            self.sentences = lambda start, stop: self._loader(StreamedBatches(stream, collate, start=start, **share))
            return
        with accelerator.main_process_first():
            rows = tokenize_once(load_sentences(self.recipe), **cut, config=config)
        batches = Batches(rows, ViewCollator(*self.place, config.view_columns, config.edit_sentence), **share)
        self.batches_per_epoch = batches.batches_per_epoch
        self.numbered["sentences"] = batches
        logger.info("%d sentences, %d batches an epoch", len(rows), batches.batches_per_epoch)
        self.sentences = lambda start, stop: self._loader(batches, sampler=range(start, stop))

    def _load_labelled(self, classes: int, cut: dict, accelerator: Accelerator) -> None:
        if classes == 0:
            raise UserError("nli_steps, nli_epochs: give nli_classes too, 2 (triplets) or 3 (labelled pairs)")
        with accelerator.main_process_first():
            rows = tokenize_once(load_labelled(self.recipe, classes), **cut)
        collate = ViewCollator(*self.place, lambda columns: list(range(columns)))
        batches = Batches(rows, collate, batch_size=self.recipe.nli_batch_size, **self.share)
        self.nli_batches_per_epoch = batches.batches_per_epoch
        self.numbered["labelled"] = batches
        logger.info("%d labelled rows, %d batches an epoch", len(rows), batches.batches_per_epoch)
        self.probe = lambda: collate([{**rows[i]} for i in range(min(PROBE, len(rows)))])
        self.labelled = lambda start, stop: self._loader(batches, sampler=range(start, stop))

    def _loader(self, batches: Dataset, **options: Any) -> DataLoader:
        return DataLoader(batches, **self.options, **options)

    def batches(self, stage: str, start: int, stop: int, before: int) -> Iterator[dict[str, Any]]:
        """Arguments of the model's forward, for the batches from `start` to `stop` of a stage.

        Args:
            stage: `nli` gives labelled pairs alone, `contrastive` sentences, and labelled pairs where they are joint.
            before: batches of earlier stages, so that labelled pairs go on where those left off.
        """
        sources = []
        if stage == "contrastive":
            sources.append(("", iter(self.sentences(start, stop))))
        if stage == "nli" or self.joint:
            sources.append(("nli_", iter(self.labelled(before + start, before + stop))))
        for _ in range(start, stop):
            yield {prefix + name: value for prefix, source in sources for name, value in next(source).items()}

    def rows(self, stage: str, start: int, stop: int, before: int) -> dict[str, list[int]]:
        """Numbers of the rows that `batches` gives to all processes, counted from 0 after blank rows went; none of
        a stream.
        """
        places = {}
        if stage == "contrastive":
            places["sentences"] = range(start, stop)
        if stage == "nli" or self.joint:
            places["labelled"] = range(before + start, before + stop)
        return {
            kind: [row for number in numbers for row in self.numbered[kind].rows(number)]
            for kind, numbers in places.items()
            if kind in self.numbered
        }
