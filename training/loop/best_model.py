"""The best model of a run: chosen by its score on dev while the run trains, and served at its end."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel
from csezoo.modeling.serving.encoding_csezoo import tokenize

from ..errors import UserError
from ..evaluation.baseline import AS_SERVED, keep_baseline
from ..evaluation.report import dev_only
from ..evaluation.selection import dev_score
from ..evaluation.suites import Task
from ..evaluation.tasks.sts import PairTask
from ..loading.served_encoder import load_as_served
from ..publishing.repository import save_repository
from ..recipes import Recipe
from ..recipes.keys import LAST
from .background import BackgroundWriter, host_copies
from .building import Build
from .distributed.hosts import from_main, wait_for_all
from .distributed.launch import on_main
from .health import collapse_signs
from .precision import float32_attention
from .served.best_weights import BestWeights
from .served.fitted_maps import fit_map
from .served.soup import Soup, Weights
from .training_log import TrainingLog

logger = logging.getLogger(__name__)


class BestModel:
    """Scores the serving model of a run on dev, and keeps its weights whenever it is better than before.

    Args:
        run: the run's directory.
        dev: tasks whose mean score selects the best model. Without them, the last model is the best.
        log: gets the scores.
    """

    COUNTERS: tuple[str, ...] = ("best_step", "best_score", "highest", "last_score", "times_lower", "times_not_best")

    def __init__(self, run: Path, built: Build, recipe: Recipe, dev: Sequence[Task], log: TrainingLog):
        self.run, self.built, self.recipe, self.dev, self.log = run, built, recipe, dev, log
        self.token_ids: dict[str, torch.Tensor] = {}  # of the texts encoded so far
        self.accelerator = log.accelerator
        self.best_step: int | None = None
        self.best_score: float | None = None
        self.highest: float | None = None  # dev score; `select_by: last` serves another update
        self.last_score: float | None = None
        self.times_lower = 0
        self.times_not_best = 0  # evaluations in a row
        self.weights = BestWeights(run / "best_weights")
        self.soup = Soup(recipe.soup)

    def counters(self) -> dict:
        """Return what a checkpoint keeps. The checksums of `best_weights` are known when these have been written."""
        kept = {name: getattr(self, name) for name in self.COUNTERS}
        kept["select_by"] = self.recipe.select_by
        return {**kept, "soup": list(self.soup.ranked), "best_weights": dict.fromkeys(sorted(self._needed_steps()))}

    def restore(self, counters: dict) -> None:
        """Continue with a checkpoint's counters.

        With `force`, the weights that they name are scored again, which changes those of the model: call this before
        the checkpoint is loaded.

        Raises:
            UserError: the weights are missing, or were changed.
        """
        for name in self.COUNTERS:
            setattr(self, name, counters[name])
        self.soup.ranked = [(score, step) for score, step in counters["soup"]][: self.recipe.soup]
        self.weights.checksums = {int(step): checksum for step, checksum in counters["best_weights"].items()}
        restored = on_main(self.accelerator, self._check_weights)
        self.best_step, self.best_score, self.highest, self.soup.ranked = restored

    def refuse_another_choice(self, counters: dict) -> None:
        """Refuse to choose by something else than a checkpoint did, where no update follows it to choose.

        The weights that would be chosen now may be gone.
        """
        if counters["select_by"] != self.recipe.select_by and self.dev and self.best_step is not None:
            raise UserError(
                "select_by: --force cannot change it after the last update; undo the change, choose another "
                "--output_dir, or use --overwrite to start again"
            )

    def _check_weights(self) -> tuple[int | None, float | None, float | None, list[tuple[float, int]]]:
        """Return the update of the best weights, its score, the highest one, and the ranks of the soup."""
        lost = self.weights.damage(self._needed_steps())
        if lost and not self.recipe.force:
            raise UserError(
                f"{lost}; put a copy of it back, or use --force to choose the best of the updates that follow"
            )
        if lost:
            logger.warning("%s: the best of the updates from here on is served", lost)
            return None, None, None, []
        if self.recipe.force and self.best_step is not None and self.dev:
            self._score_again()  # the dev pairs or the precision may have changed
        return self.best_step, self.best_score, self.highest, self.soup.ranked

    def _score_again(self) -> None:
        serving = self._serving()
        scores = {}
        for step in sorted(self._needed_steps()):
            serving.load_state_dict(self.weights.read(step))
            scores[step] = self._dev_score(serving)
        self.soup.ranked = []
        for step, score in scores.items() if self.recipe.soup else ():
            self.soup.rank(score, step)
        self.best_step = self.soup.ranked[0][1] if self.soup.ranked else self.best_step
        self.best_score = scores[self.best_step]  # type: ignore[index]  # the caller knows that there is one
        self.highest = self.best_score

    def _needed_steps(self) -> set[int]:
        best = set() if self.best_step is None else {self.best_step}
        return best | {step for _, step in self.soup.ranked}

    @property
    def stopped(self) -> bool:
        """True once dev has dropped `endurance` times, or found nothing better in `patience` evaluations."""
        endurance, patience = self.recipe.endurance, self.recipe.patience
        dropped = endurance is not None and self.times_lower >= endurance
        return dropped or (patience is not None and self.times_not_best >= patience)

    def count(self, score: float) -> None:
        """Count dev scores that are lower than the one before, and those in a row that are no better than the best."""
        self.times_lower += self.last_score is not None and score < self.last_score
        self.last_score = score
        better = self.highest is None or score > self.highest
        self.times_not_best = 0 if better else self.times_not_best + 1

    def evaluate(
        self, step: int, writer: BackgroundWriter, *, counts: bool = True, score: float | None = None
    ) -> None:
        """Score the serving model on dev, and keep its weights if it is better.

        If the method may serve one of several encoders, each is scored and the best one counts. Without dev, or if the
        recipe selects the last one, they are always kept.

        Args:
            writer: writes the weights while the run trains on.
            counts: whether it counts for `endurance` and `patience`. Scores before training and of stage `nli` do not.
            score: of the model on dev, if it is known.
        """
        encoder = self.built.model.served_encoders()[0]
        if self.dev:
            if score is None and self.accelerator.is_main_process:
                score, encoder = self._best_encoder()
            score = cast(float, from_main(score))
            self.log.write({"step": step, "dev": score})
            self.soup.rank(score, step)
            if counts:
                self.count(score)
            self.highest = score if self.highest is None else max(score, self.highest)
        always = not self.dev or self.best_score is None or self.recipe.select_by == LAST
        if always or cast(float, score) > cast(float, self.best_score):
            self.best_step, self.best_score = step, score
        if self.accelerator.is_main_process:
            if step in self._needed_steps():
                with self.built.model.serving_model().read_with(encoder):
                    weights = host_copies(self._serving().state_dict())
                writer.submit(partial(self.weights.write, step, weights))
        wait_for_all()

    def write(self, seed: int) -> list[int]:
        """Write `best/` after the last update, with the best weights of the run or their average.

        Returns:
            The updates that its weights are an average of.
        """
        recipe, tokenizer = self.recipe, self.built.serving_tokenizer
        with float32_attention(self.built.model, recipe):
            serving = self._serving()

            def evaluate(weights: Weights) -> float:
                serving.load_state_dict(weights)
                return self._dev_score(serving)

            steps = [] if self.best_step is None else [self.best_step]
            if self.soup.ranked:
                weights, steps, self.best_score = self.soup.average(self.weights.read, evaluate)
                serving.load_state_dict(weights)
            elif self.best_step is not None:
                serving.load_state_dict(self.weights.read(self.best_step))
            if recipe.whitening or recipe.flow:
                self.log.seconds += fit_map(serving, tokenizer, recipe, seed)
            save_repository(self.run / "best", serving, tokenizer, recipe)
        return steps

    def score_base_model(self, tasks: Sequence[Task]) -> float | None:
        """Keep the scores of the base model: as it is served, or of a bare encoder as the run reads it.

        Returns:
            The dev score of a bare encoder: the run begins with it.
        """
        recipe, shown = self.recipe, pairs_to_show(self.recipe, tasks)
        served = load_as_served(str(recipe.base_model), recipe.base_revision, self.built.served)
        if served:
            encoder, tokenizer = served.to(self.accelerator.device), served.own_tokenizer()
            encode = partial(encoder.encode, tokenizer=tokenizer, batch_size=recipe.eval_batch_size)
            baseline = keep_baseline(self.run, AS_SERVED, encode, tasks, shown)
        else:
            name = f"untrained, {self.built.model.config.pooling}"
            baseline = keep_baseline(self.run, name, partial(self._encode, self._serving()), tasks, shown)
        scores = [result["value"] for result in dev_only(baseline["results"])]
        score = statistics.mean(scores) if scores else None
        if not served:
            return score
        if score is not None:
            self.log.write({"step": 0, AS_SERVED: score})
        return None

    def _best_encoder(self) -> tuple[float, nn.Module]:
        """Return the best dev score of the encoders that may be served, and the encoder; of equal ones the first."""
        scores = []
        for encoder in self.built.model.served_encoders():
            with self.built.model.serving_model().read_with(encoder):
                scores.append((self._dev_score(self._serving()), encoder))
        return max(scores, key=lambda scored: scored[0])

    def _serving(self) -> SentenceEncoderModel:
        return self.built.model.serving_model().eval()

    def _encode(self, serving: SentenceEncoderModel, texts: list[str]) -> np.ndarray:
        """Return the vectors of texts, and warn if they have collapsed."""
        tokenizer = self.built.serving_tokenizer
        new = [text for text in texts if text not in self.token_ids]
        self.token_ids |= zip(new, tokenize(tokenizer, [serving.prompt_text() + text for text in new]), strict=True)
        ids = [self.token_ids[text] for text in texts]
        encoded = serving.encode_token_ids(ids, tokenizer.pad_token_id, self.recipe.eval_batch_size)
        vectors = encoded.float().cpu().numpy()
        for line in collapse_signs(vectors, self.built.model):
            logger.warning("step %d: %s", self.log.step, line)
        return vectors

    def _dev_score(self, serving: SentenceEncoderModel) -> float:
        # Not `_serving()` again: a method computes what it serves from its own weights, not from those loaded here.
        return dev_score(partial(self._encode, serving), self.dev)


def pairs_to_show(recipe: Recipe, tasks: Sequence[Task]) -> list[PairTask]:
    """Return the task whose sentences the card may show: `pairs_to_draw` of those that are no files of the user."""
    own = ("dev", "test")  # public test sets have names of their own
    return pairs_to_draw([task for task in tasks if recipe.show_sentences or task.name not in own])


def pairs_to_draw(tasks: Sequence[Task]) -> list[PairTask]:
    """Return STS-B, or else the last task of pairs; transfer tasks alone have none."""
    pairs = [task for task in tasks if isinstance(task, PairTask)]
    return [task for task in pairs if task.name == "STSBenchmark"] or pairs[-1:]
