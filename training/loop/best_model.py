"""The best model of a run: scored on dev, and saved as `best/`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list

from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..evaluation.selection import dev_score
from ..evaluation.suites import Task
from ..publishing.repository import save_repository
from ..recipes import Recipe
from ..recipes.keys import LAST
from .building import Build
from .health import warnings
from .served.soup import Soup
from .training_log import TrainingLog

logger = logging.getLogger(__name__)


class BestModel:
    """Scores the serving model of a run on dev, and saves it as `best/` whenever it is better than before.

    Args:
        run: the run's directory.
        dev: tasks whose mean score selects the best model. Without them, the last model is the best.
        log: gets the scores.
    """

    def __init__(self, run: Path, built: Build, recipe: Recipe, dev: Sequence[Task], log: TrainingLog):
        self.run, self.built, self.recipe, self.dev, self.log = run, built, recipe, dev, log
        self.accelerator = log.accelerator
        self.best_step: int | None = None
        self.best_score: float | None = None
        self.last_score: float | None = None
        self.times_lower = 0
        self.soup = Soup(run / "soup", recipe.soup)
        self.dev_results: list[dict] = []

    COUNTERS: tuple[str, ...] = ("best_step", "best_score", "last_score", "times_lower")

    def counters(self) -> dict:
        return {name: getattr(self, name) for name in self.COUNTERS} | {"soup": self.soup.ranked}

    def restore(self, counters: dict) -> None:
        """Continue with a checkpoint's counters. A counter that older code did not write keeps its initial value."""
        for name in self.COUNTERS:
            setattr(self, name, counters.get(name, getattr(self, name)))
        self.soup.ranked = [(score, step) for score, step in counters.get("soup", [])]

    @property
    def stopped(self) -> bool:
        """True once dev has dropped `endurance` times (SG-OPT's early stopping)."""
        return self.recipe.endurance is not None and self.times_lower >= self.recipe.endurance

    def count_drop(self, score: float) -> None:
        """Count dev scores that are lower than the one before."""
        self.times_lower += self.last_score is not None and score < self.last_score
        self.last_score = score

    def evaluate(self, step: int, *, counts: bool) -> None:
        """Score the serving model on dev, and save it as `best/` if it is better.

        Without dev, or if the recipe selects the last one, it is always saved.

        Args:
            step: updates so far.
            counts: whether a drop counts for `endurance`. Scores before training and of stage `nli` do not count.
        """
        score: Any = None
        if self.dev:
            scores = [self._dev_score() if self.accelerator.is_main_process else None]
            score = broadcast_object_list(scores)[0]
            self.log.write({"step": step, "dev": score})
            if self.recipe.soup:
                self.soup.add(score, step, self._serving(), write=self.accelerator.is_main_process)
            if counts:
                self.count_drop(score)
        always = not self.dev or self.best_score is None or self.recipe.select_by == LAST
        if always or score > self.best_score:
            self.best_step, self.best_score = step, score
            if self.accelerator.is_main_process:
                tokenizer = self.built.serving_tokenizer
                save_repository(self.run / "best", self._serving(), tokenizer, self.recipe, self.dev_results)
        self.accelerator.wait_for_everyone()

    def serve_soup(self) -> list[int]:
        """Average the best weights of the run, and save the average as `best/` if it is better on dev.

        Only the main process calls this, after the last update: the model has other weights then.

        Returns:
            The steps that `best/` is an average of.
        """
        serving = self._serving()

        def evaluate(weights: dict[str, torch.Tensor]) -> float:
            serving.load_state_dict(weights)
            return self._dev_score()

        weights, steps, self.best_score = self.soup.cook(evaluate)
        if len(steps) > 1:
            evaluate(weights)  # for the results on the card
            save_repository(self.run / "best", serving, self.built.serving_tokenizer, self.recipe, self.dev_results)
        return steps

    def _serving(self) -> SentenceEncoderModel:
        return self.built.model.serving_model().eval()

    def _dev_score(self) -> float:
        serving = self._serving()

        def encode(texts: list[str]) -> np.ndarray:
            vectors = serving.encode(texts, self.built.serving_tokenizer, batch_size=self.recipe.eval_batch_size)
            for line in warnings(vectors, self.built.model):
                logger.warning("step %d: %s", self.log.step, line)
            return vectors

        score, self.dev_results = dev_score(encode, self.dev, {"pooling": serving.config.pooling})
        return score
