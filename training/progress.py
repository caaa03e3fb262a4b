"""What a run has seen so far, and what it leaves: metrics, dev scores, the best model."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from .building import Build
from .checkpoints import complete
from .errors import UserError
from .evaluation import evaluate_tasks
from .recipes import Recipe
from .repository import save_repository
from .sts import PairTask

logger = logging.getLogger(__name__)


class Progress:
    """What a run has seen so far: losses, dev scores, the best model."""

    def __init__(self, run: Path, built: Build, recipe: Recipe, accelerator: Accelerator, dev: PairTask | None):
        self.run, self.built, self.recipe, self.accelerator, self.dev = run, built, recipe, accelerator, dev
        self.metrics = run / "metrics.jsonl"
        self.step, self.best_step, self.best_score, self.seconds = 0, None, None, 0.0
        self.rows, self.update_seconds = 0, 0.0
        self.last_score, self.times_lower = None, 0
        self.losses: list[dict[str, torch.Tensor]] = []
        self.dev_results: list[dict] = []
        self.prefix = f"{run.name}/" if len(recipe.seeds) > 1 else ""  # one tracker holds all seeds
        if accelerator.is_main_process and not complete(run / "checkpoints"):
            self.metrics.write_text("", encoding="utf-8")

    COUNTERS = ("step", "best_step", "best_score", "last_score", "times_lower", "seconds")
    COUNTERS += ("rows", "update_seconds")

    def counters(self) -> dict:
        return {name: getattr(self, name) for name in self.COUNTERS}

    def restore(self, counters: dict) -> None:
        """Go on from a checkpoint's counters; what was logged after it will be logged again."""
        for name in self.COUNTERS:
            setattr(self, name, counters[name])
        if self.accelerator.is_main_process:
            lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)["step"] <= self.step]
            self.metrics.write_text("".join(kept), encoding="utf-8")

    @property
    def stopped(self) -> bool:
        """Whether dev has been lower than the time before as often as the recipe endures (SG-OPT's early stopping)."""
        return self.recipe.endurance is not None and self.times_lower >= self.recipe.endurance

    def count_fall(self, score: float) -> None:
        self.times_lower += self.last_score is not None and score < self.last_score
        self.last_score = score

    def add(self, step: int, losses: dict[str, torch.Tensor], rows: int) -> None:
        self.step = step
        self.rows += rows
        self.losses.append(losses)  # read when it is logged: reading waits for the device

    def log(self, learning_rate: float) -> dict:
        """Write the mean losses since the last time; stop at one that is not finite."""
        means = torch.stack([torch.stack([losses[name] for losses in self.losses]).mean() for name in self.losses[0]])
        means = self.accelerator.reduce(means, reduction="mean").tolist()
        line = dict(zip(self.losses[0], means, strict=True))
        self.losses = []
        if not math.isfinite(line["loss"]):
            raise UserError(
                f"the loss is {line['loss']} at step {self.step}: lower --learning_rate, or try --mixed_precision no"
            )
        self._write({"step": self.step, **line, "learning_rate": learning_rate})
        return {"loss": f"{line['loss']:.4f}"}

    def evaluate(self, step: int, *, counts: bool) -> None:
        """Score the serving model on dev; a strictly better one becomes `best/`. Without dev the newest is best.

        Args:
            counts: for `endurance`: the evaluation before training and those on labelled pairs do not.
        """
        score = None
        if self.dev is not None:
            score = [self._dev_score() if self.accelerator.is_main_process else None]
            score = broadcast_object_list(score)[0]
            self._write({"step": step, "dev": score})
            if counts:
                self.count_fall(score)
        if self.dev is None or self.best_score is None or score > self.best_score:
            self.best_step, self.best_score = step, score
            if self.accelerator.is_main_process:
                tokenizer = self.built.serving_tokenizer
                save_repository(self.run / "best", self._serving(), tokenizer, self.recipe, self.dev_results)
        self.accelerator.wait_for_everyone()

    def diagnose(self, probe: dict[str, torch.Tensor]) -> None:
        """Write what the method says of itself on a fixed batch of labelled rows."""
        if self.accelerator.is_main_process:
            model = self.built.model.eval()
            values = model.diagnostics(**{name: tensor.to(model.device) for name, tensor in probe.items()})
            if values:
                self._write({"step": self.step, **values})
        self.accelerator.wait_for_everyone()

    def _serving(self):
        return self.built.model.serving_model().eval()

    def _dev_score(self) -> float:
        serving = self._serving()

        def encode(texts):
            return serving.encode(texts, self.built.serving_tokenizer, batch_size=self.recipe.eval_batch_size)

        self.dev_results = evaluate_tasks(encode, [self.dev], receipt={"pooling": serving.config.pooling})
        return self.dev_results[0]["value"]

    def _write(self, line: dict) -> None:
        values = {f"{self.prefix}{key}": value for key, value in line.items() if key != "step"}
        self.accelerator.log(values, step=line["step"])
        if self.accelerator.is_main_process:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        logger.info("%s", "  ".join(f"{k} {v:.6g}" for k, v in line.items()))
