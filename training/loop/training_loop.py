"""The one training loop: a recipe and a seed in, a run directory with the best model out."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import LRScheduler
from tqdm.auto import tqdm
from transformers import PreTrainedModel, get_scheduler

from csezoo.modeling.modeling_contrastive import ForContrastiveLearning

from ..environment import peak_device_bytes, peak_rss_bytes
from ..errors import UserError
from ..evaluation.tasks.sts import PairTask
from ..pictures.curves import draw_prefix_tuning, draw_training_curves
from ..recipes import Recipe
from .building import build
from .checkpoints import TrainingState, checkpoints, newest, step_of
from .distributed.fsdp import full_tensor, gather_weights, model_to_train
from .non_finite import NonFinite, keep_batch
from .optimizers import make_optimizer
from .precision import precision_of
from .progress import GRADIENT_NORM, Progress
from .run_data import RunData
from .run_receipt import run_receipt

logger = logging.getLogger(__name__)


@dataclass
class Stage:
    """A stretch of updates with its own data, trained parameters, optimizer and schedule.

    Args:
        name: `nli`, labelled pairs alone, or `contrastive`.
        start: updates of the run before it.
        updates: its own.
        decay: updates over which its schedule runs, which may be more than are made.
    """

    name: str
    start: int
    updates: int
    decay: int
    learning_rate: float

    @property
    def stop(self) -> int:
        return self.start + self.updates


def train(recipe: Recipe, seed: int, run: Path, accelerator: Accelerator, dev: PairTask | None) -> dict:
    """Train one seed to the end, from the newest complete checkpoint if there is one.

    Args:
        run: the run's directory; gets `metrics.jsonl`, `checkpoints/`, `best/`.
        dev: pairs that choose the best checkpoint; without them the last one is the best.

    Returns:
        What a results file says of training: the chosen step, its dev score, updates, and what it cost (`cost`).
    """
    set_seed(seed)
    if accelerator.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(accelerator.device)
    built = build(recipe)
    if recipe.gradient_checkpointing:
        _checkpoint_gradients(built.model)
    built.model.to(accelerator.device)
    data = RunData(recipe, seed, built, accelerator)
    stages = plan_stages(recipe, data)
    receipt = run_receipt(recipe, seed, built.serving_tokenizer, accelerator, dev)
    checkpoint = newest(run / "checkpoints", receipt, force=recipe.force)
    progress = Progress(run, built, recipe, accelerator, dev, receipt)
    trainable = [parameter for parameter in built.model.parameters() if parameter.requires_grad]
    if checkpoint is None:
        progress.begin()
        progress.evaluate(step=0, counts=False)
    bar = tqdm(total=stages[-1].stop, desc=f"Training (seed {seed})", disable=not _on_terminal(accelerator))
    for stage in stages:
        if not progress.stopped:
            train_stage(stage, recipe, seed, data, trainable, progress, bar, checkpoint)
        if stage.name == "nli" and accelerator.is_main_process:
            draw_prefix_tuning(progress.metrics)
    bar.close()
    if accelerator.is_main_process:
        draw_training_curves(progress.metrics)
        if progress.step and progress.best_step == 0:
            logger.warning("dev was never higher than before training: best/ holds the weights that it began with")
    return {
        "best_step": progress.best_step,
        "dev": progress.best_score,
        "updates": progress.step,
        "processes": accelerator.num_processes,
        "precision": precision_of(accelerator),
        **cost(progress),
    }


def cost(progress: Progress) -> dict[str, float | int | None]:
    """What training cost so far, for a results file.

    Returns:
        `seconds` of updates and dev evaluations, without writing checkpoints; `update_seconds` of updates alone;
        `rows_per_second`, training rows (sentences, pairs or triplets) of all processes in a second of updates;
        `peak_rss_bytes`, the most memory this process has held, and `peak_device_bytes`, the most of its GPU's, `None`
        on CPU. A run that was resumed adds up its seconds; its peaks are those since then.
    """
    rows = progress.rows * progress.accelerator.num_processes
    return {
        "seconds": round(progress.seconds, 3),
        "update_seconds": round(progress.update_seconds, 3),
        "rows_per_second": round(rows / progress.update_seconds, 1) if rows else None,
        "peak_rss_bytes": peak_rss_bytes(),
        "peak_device_bytes": peak_device_bytes(),
    }


def plan_stages(recipe: Recipe, data: RunData) -> list[Stage]:
    """The stage on labelled pairs, where a recipe has one, and the contrastive one, which may be empty."""
    batches = recipe.gradient_accumulation_steps
    updates = recipe.max_steps
    if updates is None:
        updates = math.ceil(data.batches_per_epoch * recipe.epochs / batches)
    before = recipe.nli_steps
    if recipe.nli_epochs:
        before = math.ceil(data.nli_batches_per_epoch * recipe.nli_epochs / batches)
    contrastive = Stage("contrastive", before, updates, updates, recipe.learning_rate)
    if not before:
        return [contrastive]
    decay = recipe.nli_decay_steps or updates or before
    if decay < before:
        raise UserError(
            f"nli_steps: the schedule of {before} updates on labelled pairs would end after {decay} of them: give "
            "--nli_decay_steps, as many or more"
        )
    rate = recipe.learning_rate if recipe.nli_learning_rate is None else recipe.nli_learning_rate
    return [Stage("nli", 0, before, decay, rate), contrastive]


def train_stage(
    stage: Stage,
    recipe: Recipe,
    seed: int,
    data: RunData,
    trainable: list[torch.nn.Parameter],
    progress: Progress,
    bar: tqdm,
    checkpoint: Path | None,
) -> None:
    """Train a stage from its beginning, from a checkpoint within it, or not at all if one lies beyond it."""
    accelerator, model = progress.accelerator, progress.built.model
    made = step_of(checkpoint) if checkpoint else 0
    if made > stage.stop or stage.updates == 0:
        return
    for parameter in trainable:
        parameter.requires_grad_()
    model.begin_stage(stage.name)
    trained = model_to_train(model, accelerator)
    wrapped, optimizer, scheduler = start_stage(stage, recipe, trained, accelerator)
    # Every process starts from the same weights and then draws its own dropout.
    set_seed(seed + stage.start, device_specific=True)
    state = TrainingState(accelerator, model, trained, optimizer, scheduler, progress.receipt)
    if checkpoint and made > stage.start:
        progress.restore(state.load(checkpoint))
        logger.info("resumed from %s", checkpoint)
    bar.update(progress.step - bar.n)
    batches = recipe.gradient_accumulation_steps
    done = (progress.step - stage.start) * batches
    loader = data.batches(stage.name, done, stage.updates * batches, before=stage.start * batches)
    started = time.perf_counter()
    wrapped.train()
    for step in range(progress.step + 1, stage.stop + 1):
        if progress.stopped:
            break
        learning_rate = float(scheduler.get_last_lr()[0])
        losses, rows = update(wrapped, optimizer, loader, recipe, accelerator)
        # fp16 skips an update that overflowed and goes on; one that DeepSpeed skips ends the run.
        if accelerator.scaler and optimizer.step_was_skipped:
            losses[GRADIENT_NORM].zero_()
        else:
            scheduler.step()
            with torch.no_grad():
                trained.after_update()
        progress.add(step, losses, rows)
        bar.update()
        last = step == stage.stop
        if step % recipe.log_steps == 0 or step % recipe.eval_steps == 0 or last:
            try:
                bar.set_postfix(progress.log(learning_rate))
            except NonFinite as found:
                raise _stopped_at(found, stage, recipe, data, progress) from None
        if step % recipe.eval_steps == 0 or last:
            progress.update_seconds += time.perf_counter() - started  # logging has waited for the device
            gather_weights(trained, model)
            progress.evaluate(step, counts=stage.name == "contrastive")
            if stage.name == "nli":
                progress.diagnose(data.probe())
            progress.seconds += time.perf_counter() - started
            started = time.perf_counter()
            progress.save(state)
            wrapped.train()
    accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
    accelerator.free_memory()  # the next stage wraps the model anew, for what it trains


def start_stage(
    stage: Stage, recipe: Recipe, model: ForContrastiveLearning, accelerator: Accelerator
) -> tuple[torch.nn.Module, AcceleratedOptimizer, LRScheduler]:
    """The model wrapped for what the stage trains, everything else frozen, and its own optimizer and schedule."""
    for parameter in model.frozen_parameters(stage.name):
        parameter.requires_grad_(False)
    groups = _parameter_groups(model, recipe.weight_decay)
    optimizer = make_optimizer(recipe, groups, stage.learning_rate, fp16=accelerator.scaler is not None)
    scheduler = get_scheduler(
        recipe.lr_scheduler,
        optimizer,
        num_warmup_steps=math.ceil(recipe.warmup_ratio * stage.decay),
        num_training_steps=stage.decay,
    )
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    return wrapped, optimizer, scheduler


def _stopped_at(found: NonFinite, stage: Stage, recipe: Recipe, data: RunData, progress: Progress) -> UserError:
    """The update that a run stops at, kept with its batches."""
    first = (found.step - 1 - stage.start) * recipe.gradient_accumulation_steps
    place = (stage.name, first, first + recipe.gradient_accumulation_steps)
    before = stage.start * recipe.gradient_accumulation_steps
    written = checkpoints(progress.run / "checkpoints", progress.receipt)
    return keep_batch(
        progress.run / "non_finite" / f"step-{found.step:08d}",
        found,
        list(data.batches(*place, before=before)),
        data.rows(*place, before=before),
        written[-1] if written else None,
        progress.accelerator.process_index,
    )


def _on_terminal(accelerator: Accelerator) -> bool:
    return accelerator.is_main_process and sys.stderr.isatty()


def _checkpoint_gradients(model: PreTrainedModel) -> None:
    try:
        with warnings.catch_warnings():
            # Its newer name is not in transformers 5.20.
            warnings.filterwarnings("ignore", ".gradient_checkpointing_enable. is deprecated", FutureWarning)
            model.gradient_checkpointing_enable()
    except ValueError as error:
        raise UserError(f"gradient_checkpointing: {error}") from error


def _parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
    """Weight decay leaves out biases and norms, as BERT's own training does."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]


def on_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """A batch with its tensors on a device that is not waited for, and everything else as it is."""
    moved = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    return batch | {name: tensor.to(device, non_blocking=True) for name, tensor in moved.items()}


def update(
    model: torch.nn.Module,
    optimizer: AcceleratedOptimizer,
    loader: Iterator[dict[str, Any]],
    recipe: Recipe,
    accelerator: Accelerator,
) -> tuple[dict[str, torch.Tensor], int]:
    """One optimizer step; returns its losses, on the device, and its rows.

    The losses are means over its batches: the loss, its named parts, and last the norm of the gradient.
    """
    batches, rows = recipe.gradient_accumulation_steps, 0
    totals: dict[str, torch.Tensor] = {}
    for _ in range(batches):
        batch = next(loader)
        rows += next(len(value) for value in batch.values() if isinstance(value, torch.Tensor))
        batch = on_device(batch, accelerator.device)
        with accelerator.accumulate(model):  # gradients are exchanged once an update
            with accelerator.autocast():  # accelerate's own wrapping leaves FSDP out
                output = model(**batch)
            accelerator.backward(output.loss)  # of which it takes the mean over the update's batches
        for name, loss in {"loss": output.loss, **output.losses}.items():
            totals[name] = totals.get(name, 0) + loss.detach() / batches
    norm = accelerator.clip_grad_norm_(model.parameters(), recipe.max_grad_norm or math.inf)
    totals[GRADIENT_NORM] = torch.as_tensor(full_tensor(norm), device=accelerator.device)  # DeepSpeed's is a float
    optimizer.step()
    optimizer.zero_grad()
    return totals, rows
