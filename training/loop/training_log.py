"""The log of a run: what each update counted, in `metrics.jsonl`, the tracker and the log lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from accelerate import Accelerator

from csezoo.modeling.contrastive.training_model import ForContrastiveLearning

from ..environment import peak_device_bytes, peak_rss_bytes
from ..files import replace_file
from ..recipes import Recipe
from .distributed.hosts import wait_for_all
from .non_finite import NonFinite

logger = logging.getLogger(__name__)
GRADIENT_NORM = "gradient_norm"
PADDING_TOKENS = "padding_tokens"


def seed_name(recipe: Recipe, seed: int) -> str:
    """Name a seed, and its place if the recipe has several."""
    place = f" {recipe.seeds.index(seed) + 1} of {len(recipe.seeds)}:" if len(recipe.seeds) > 1 else ""
    return f"seed{place} {seed}"


class TrainingLog:
    """Counts the updates, rows and seconds of a run, and logs its losses to `metrics.jsonl` in its directory."""

    COUNTERS: tuple[str, ...] = ("step", "seconds", "rows", "update_seconds", "changed")

    def __init__(self, run: Path, accelerator: Accelerator):
        self.accelerator = accelerator
        self.metrics = run / "metrics.jsonl"
        self.step, self.seconds = 0, 0.0
        self.rows, self.update_seconds = 0, 0.0
        self.changed: list[str] = []  # what was another when the run was resumed by force
        self.new_rows = 0  # of this process, since the last logging
        self.losses: list[dict[str, torch.Tensor]] = []
        self.prefix = f"{run.name}/" if run.name.startswith("seed-") else ""  # all seeds share one tracker

    def counters(self) -> dict:
        return {name: getattr(self, name) for name in self.COUNTERS}

    def cost(self) -> dict[str, float | int | None]:
        """Return what training cost so far, for a results file.

        Returns:
            `seconds` of updates and dev evaluations, without writing checkpoints; `update_seconds` of updates only;
            `rows_per_second`, training rows (sentences, pairs or triplets) of all processes per second of updates;
            `peak_rss_bytes`, the peak memory of this process; `peak_device_bytes`, the peak memory of its GPU, None on
            CPU. The seconds of a resumed run are added up, its peaks are those since it was resumed.
        """
        return {
            "seconds": round(self.seconds, 3),
            "update_seconds": round(self.update_seconds, 3),
            "rows_per_second": round(self.rows / self.update_seconds, 1) if self.rows else None,
            "peak_rss_bytes": peak_rss_bytes(),
            "peak_device_bytes": peak_device_bytes(self.accelerator.device),
        }

    def clear_metrics(self) -> None:
        """Start with empty metrics: drop what an attempt logged that ended before its first checkpoint."""
        if self.accelerator.is_main_process:
            replace_file(self.metrics, "")

    def restore(self, checkpoint: Path, counters: dict) -> None:
        """Continue with a checkpoint's counters, and drop the metrics logged after it: they will be logged again."""
        for name in self.COUNTERS:
            setattr(self, name, counters[name])
        if self.accelerator.is_main_process:
            written = self.metrics.read_bytes() if self.metrics.is_file() else b""
            logged = (checkpoint / self.metrics.name).read_bytes()
            if not written.startswith(logged):
                logger.warning("%s was changed after it was logged; restoring it from %s", self.metrics, checkpoint)
            replace_file(self.metrics, logged)

    def add(self, step: int, losses: dict[str, torch.Tensor], rows: int) -> None:
        """Count an update.

        Args:
            losses: scalars on the device, the loss first and the norm of the gradient last.
            rows: training rows of this process.
        """
        self.step = step
        self.new_rows += rows
        self.losses.append(losses)  # read when they are logged, because reading waits for the device

    def log(self, learning_rate: float) -> dict:
        """Log the mean losses since the last call, and return the values for the progress bar.

        Raises:
            NonFinite: a loss or gradient since then is not finite.
        """
        steps = torch.stack([torch.stack([*losses.values()]) for losses in self.losses])  # (updates, losses)
        steps = self.accelerator.reduce(steps, reduction="mean").cpu()  # the wait for the device
        new_rows = torch.tensor(self.new_rows, device=self.accelerator.device)
        self.rows, self.new_rows = self.rows + int(self.accelerator.reduce(new_rows)), 0
        *means, _ = steps.mean(0).tolist()
        *names, _ = self.losses[0]
        first, self.losses = self.step - len(self.losses) + 1, []
        if bad := (~steps.isfinite().all(1)).nonzero().flatten().tolist():
            values = dict(zip([*names, GRADIENT_NORM], steps[bad[0]].tolist(), strict=True))
            raise NonFinite(first + bad[0], values)
        line = dict(zip(names, means, strict=True))
        self.write({"step": self.step, **line, "learning_rate": learning_rate})
        return {"loss": f"{line['loss']:.4f}"}

    def diagnose(self, model: ForContrastiveLearning, probe: dict[str, torch.Tensor]) -> None:
        """Log the method's diagnostics on a fixed batch of labelled rows."""
        if self.accelerator.is_main_process:
            values = model.eval().diagnostics(**{name: tensor.to(model.device) for name, tensor in probe.items()})
            if values:
                self.write({"step": self.step, **values})
        wait_for_all()

    def write(self, line: dict) -> None:
        """Log numbers by name, with `step`, the updates so far."""
        values = {f"{self.prefix}{key}": value for key, value in line.items() if key != "step"}
        self.accelerator.log(values, step=line["step"])
        if self.accelerator.is_main_process:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        logger.info("%s", "  ".join(f"{k} {v:.6g}" for k, v in line.items()))
