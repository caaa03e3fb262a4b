"""The best model of a run: scored on dev, and saved as `best/`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list

from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..errors import UserError
from ..evaluation.selection import dev_score
from ..evaluation.suites import Task
from ..publishing.repository import save_repository
from ..recipes import Recipe
from ..recipes.keys import LAST
from .building import Build
from .distributed.launch import on_main
from .health import warnings
from .served.best_weights import BestWeights
from .served.soup import Soup, Weights
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
        self.weights = BestWeights(run / "best_weights")
        self.soup = Soup(recipe.soup)
        self.dev_results: list[dict] = []

    COUNTERS: tuple[str, ...] = ("best_step", "best_score", "last_score", "times_lower")

    def counters(self) -> dict:
        kept = {name: getattr(self, name) for name in self.COUNTERS}
        return {**kept, "soup": self.soup.ranked, "best_weights": self.weights.checksums}

    def restore(self, counters: dict) -> None:
        """Continue with a checkpoint's counters, and make `best/` from the weights that they name.

        `best/` may have others: those of later updates, an average, a whitening or a flow. The weights of the model
        change too, so call this before the checkpoint is loaded. A counter that older code did not write keeps its
        initial value.

        Raises:
            UserError: the weights are missing, or were changed.
        """
        for name in self.COUNTERS:
            setattr(self, name, counters.get(name, getattr(self, name)))
        self.soup.ranked = [(score, step) for score, step in counters.get("soup", [])][: self.recipe.soup]
        self.weights.checksums = {int(step): checksum for step, checksum in counters.get("best_weights", {}).items()}
        restored = on_main(self.accelerator, self._restore_best)
        self.best_step, self.best_score, self.soup.ranked = restored

    def _restore_best(self) -> tuple[int | None, float | None, list[tuple[float, int]]]:
        """Make `best/`. Return its update, its score, and the ranks of the soup."""
        if not self.weights.checksums and (older := self.run / "soup").is_dir():
            self.weights.adopt(older)
        self.weights.need(self._needed_steps())
        lost = self.weights.damage(self._needed_steps())
        if lost and self.recipe.soup:
            raise UserError(f"soup: {lost}; delete the run and train again, or use --soup 0 --force")
        if lost and not self.recipe.force:
            raise UserError(f"{lost}; put a copy of it back, or use --force to resume with best/ as it is")
        if lost:
            logger.warning("%s: best/ stays as it is, and may be of another update than %s", lost, self.best_step)
        elif self.best_step is not None:
            self._make_best(self.best_step)
        return self.best_step, self.best_score, self.soup.ranked

    def _make_best(self, step: int) -> None:
        serving = self._serving()

        def evaluate(step: int) -> Any:
            serving.load_state_dict(self.weights.read(step))
            return self._dev_score(serving) if self.dev else None

        serving.load_state_dict(self.weights.read(step))
        if self.recipe.force:  # the dev pairs or the precision may have changed
            steps, self.soup.ranked = [one for _, one in self.soup.ranked] or [step], []
            for one in steps if self.recipe.soup else []:
                self.soup.rank(evaluate(one), one)
            self.best_step = self.soup.ranked[0][1] if self.soup.ranked else step
            self.best_score = evaluate(self.best_step)
        self._save(serving)

    def delete_weights(self, checkpoints: Iterable[dict]) -> None:
        """Delete the weights that none of the checkpoints names.

        Args:
            checkpoints: the counters of each.
        """
        named = [counters.get("best_weights", {}) for counters in checkpoints]
        self.weights.delete_others({int(step) for steps in named for step in steps})

    def _needed_steps(self) -> set[int]:
        best = set() if self.best_step is None else {self.best_step}
        return best | {step for _, step in self.soup.ranked}

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
            scores = [self._dev_score(self._serving()) if self.accelerator.is_main_process else None]
            score = broadcast_object_list(scores)[0]
            self.log.write({"step": step, "dev": score})
            self.soup.rank(score, step)
            if counts:
                self.count_drop(score)
        always = not self.dev or self.best_score is None or self.recipe.select_by == LAST
        better = always or score > self.best_score
        if better:
            self.best_step, self.best_score = step, score
        if self.accelerator.is_main_process:
            serving, needed = self._serving(), self._needed_steps()
            if step in needed:
                self.weights.write(step, serving)
            self.weights.need(needed)
            if better:
                self._save(serving)
        self.accelerator.wait_for_everyone()

    def serve_soup(self) -> list[int]:
        """Average the best weights of the run, and save the average as `best/` if it is better on dev.

        Only the main process calls this, after the last update: the model has other weights then.

        Returns:
            The steps that `best/` is an average of.
        """
        serving = self._serving()

        def evaluate(weights: Weights) -> float:
            serving.load_state_dict(weights)
            return self._dev_score(serving)

        weights, steps, self.best_score = self.soup.cook(self.weights.read, evaluate)
        if len(steps) > 1:
            evaluate(weights)  # for the results on the card
            self._save(serving)
        return steps

    def _save(self, serving: SentenceEncoderModel) -> None:
        save_repository(self.run / "best", serving, self.built.serving_tokenizer, self.recipe, self.dev_results)

    def _serving(self) -> SentenceEncoderModel:
        return self.built.model.serving_model().eval()

    def _dev_score(self, serving: SentenceEncoderModel) -> float:
        def encode(texts: list[str]) -> np.ndarray:
            vectors = serving.encode(texts, self.built.serving_tokenizer, batch_size=self.recipe.eval_batch_size)
            for line in warnings(vectors, self.built.model):
                logger.warning("step %d: %s", self.log.step, line)
            return vectors

        score, self.dev_results = dev_score(encode, self.dev, {"pooling": serving.config.pooling})
        return score
