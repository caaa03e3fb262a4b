"""The progress of a run: counters, metrics, dev scores and the best model."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..evaluation.selection import dev_score
from ..evaluation.suites import Task
from ..files import flush, replace_file
from ..publishing.repository import save_repository
from ..recipes import Recipe
from ..recipes.keys import LAST
from .building import Build
from .checkpoints import TrainingState
from .health import warnings
from .non_finite import NonFinite
from .served.soup import Soup

logger = logging.getLogger(__name__)
GRADIENT_NORM = "gradient_norm"
PADDING = "padding_tokens"


def seed_name(recipe: Recipe, seed: int) -> str:
    """Name a seed, and its place if the recipe has several.

    Example:
        >>> seed_name(Recipe(seeds=[7]), 7), seed_name(Recipe(seeds=[1, 1234]), 1234)
        ('seed 7', 'seed 2 of 2: 1234')
    """
    place = f" {recipe.seeds.index(seed) + 1} of {len(recipe.seeds)}:" if len(recipe.seeds) > 1 else ""
    return f"seed{place} {seed}"


class Progress:
    """The progress of a run so far: counters, losses, dev scores and the best model.

    Args:
        dev: tasks whose mean score selects the best model; the last model is the best if there are none.
        receipt: of the run, see `run_receipt.run_receipt`.
    """

    def __init__(
        self, run: Path, built: Build, recipe: Recipe, accelerator: Accelerator, dev: Sequence[Task], receipt: dict
    ):
        self.run, self.built, self.recipe, self.accelerator, self.dev = run, built, recipe, accelerator, dev
        self.receipt = receipt
        self.metrics = run / "metrics.jsonl"
        self.step, self.seconds = 0, 0.0
        self.best_step: int | None = None
        self.best_score: float | None = None
        self.rows, self.update_seconds = 0, 0.0
        self.last_score: float | None = None
        self.times_lower = 0
        self.soup = Soup(run / "soup", recipe.soup)
        self.losses: list[dict[str, torch.Tensor]] = []
        self.dev_results: list[dict] = []
        self.prefix = f"{run.name}/" if run.name.startswith("seed-") else ""  # all seeds share one tracker

    COUNTERS: tuple[str, ...] = ("step", "best_step", "best_score", "last_score", "times_lower", "seconds")
    COUNTERS += ("rows", "update_seconds")

    def counters(self) -> dict:
        return {name: getattr(self, name) for name in self.COUNTERS} | {"soup": self.soup.ranked}

    def begin(self) -> None:
        """Start with empty metrics: drop what an attempt logged that ended before its first checkpoint."""
        if self.accelerator.is_main_process:
            replace_file(self.metrics, "")

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint. The metrics logged before it reach the disk first."""
        if self.accelerator.is_main_process:
            flush(self.metrics)
        state.save(self.run / "checkpoints", self.step, self.counters(), self.metrics)

    def restore(self, checkpoint: Path, counters: dict) -> None:
        """Continue with a checkpoint's counters, and drop the metrics logged after it: they will be logged again.

        Args:
            checkpoint: has a copy of the metrics up to it, unless older code wrote it.
            counters: of the checkpoint. A counter that older code did not write keeps its initial value.
        """
        for name in self.COUNTERS:
            setattr(self, name, counters.get(name, getattr(self, name)))
        self.soup.ranked = [(score, step) for score, step in counters.get("soup", [])]
        if self.accelerator.is_main_process:
            copy = checkpoint / self.metrics.name
            written = self.metrics.read_bytes() if self.metrics.is_file() else b""
            logged = copy.read_bytes() if copy.is_file() else self._logged_before(written)
            if not written.startswith(logged):
                logger.warning("%s was changed after it was logged; restoring it from %s", self.metrics, checkpoint)
            replace_file(self.metrics, logged)

    def _logged_before(self, written: bytes) -> bytes:
        """Return the lines up to the checkpoint's step."""
        lines = written.splitlines(keepends=True)
        complete = [line for line in lines if line.endswith(b"\n")]  # the last line may be incomplete
        kept = [line for line in complete if json.loads(line)["step"] <= self.step]
        if not kept or json.loads(kept[-1])["step"] < self.step:
            logger.warning("%s lacks lines that were logged before step %d", self.metrics, self.step)
        return b"".join(kept)

    @property
    def stopped(self) -> bool:
        """True once dev has dropped `endurance` times (SG-OPT's early stopping)."""
        return self.recipe.endurance is not None and self.times_lower >= self.recipe.endurance

    def count_drop(self, score: float) -> None:
        """Count dev scores that are lower than the one before."""
        self.times_lower += self.last_score is not None and score < self.last_score
        self.last_score = score

    def add(self, step: int, losses: dict[str, torch.Tensor], rows: int) -> None:
        """Count an update.

        Args:
            step: its number.
            losses: scalars on the device, the loss first and the norm of the gradient last.
            rows: training rows of this process.
        """
        self.step = step
        self.rows += rows
        self.losses.append(losses)  # read when they are logged, because reading waits for the device

    def log(self, learning_rate: float) -> dict:
        """Log the mean losses since the last call.

        Returns:
            The values for the progress bar.

        Raises:
            NonFinite: a loss or gradient since then is not finite.
        """
        steps = torch.stack([torch.stack([*losses.values()]) for losses in self.losses])  # (updates, losses)
        steps = self.accelerator.reduce(steps, reduction="mean")
        *means, _ = steps.mean(0).tolist()
        *names, _ = self.losses[0]
        first, self.losses = self.step - len(self.losses) + 1, []
        if bad := (~steps.isfinite().all(1)).nonzero().flatten().tolist():
            values = dict(zip([*names, GRADIENT_NORM], steps[bad[0]].tolist(), strict=True))
            raise NonFinite(first + bad[0], values)
        line = dict(zip(names, means, strict=True))
        self._write({"step": self.step, **line, "learning_rate": learning_rate})
        return {"loss": f"{line['loss']:.4f}"}

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
            self._write({"step": step, "dev": score})
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

    def diagnose(self, probe: dict[str, torch.Tensor]) -> None:
        """Log the method's diagnostics on a fixed batch of labelled rows."""
        if self.accelerator.is_main_process:
            model = self.built.model.eval()
            values = model.diagnostics(**{name: tensor.to(model.device) for name, tensor in probe.items()})
            if values:
                self._write({"step": self.step, **values})
        self.accelerator.wait_for_everyone()

    def _serving(self) -> SentenceEncoderModel:
        return self.built.model.serving_model().eval()

    def _dev_score(self) -> float:
        serving = self._serving()

        def encode(texts: list[str]) -> np.ndarray:
            vectors = serving.encode(texts, self.built.serving_tokenizer, batch_size=self.recipe.eval_batch_size)
            for line in warnings(vectors, self.built.model):
                logger.warning("step %d: %s", self.step, line)
            return vectors

        score, self.dev_results = dev_score(encode, self.dev, {"pooling": serving.config.pooling})
        return score

    def _write(self, line: dict) -> None:
        values = {f"{self.prefix}{key}": value for key, value in line.items() if key != "step"}
        self.accelerator.log(values, step=line["step"])
        if self.accelerator.is_main_process:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        logger.info("%s", "  ".join(f"{k} {v:.6g}" for k, v in line.items()))
