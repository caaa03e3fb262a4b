"""The one training loop: a recipe and a seed in, a run directory with the best model out."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import get_scheduler

from .building import Build, build
from .checkpoints import TrainingState, complete
from .data import Batches, StreamedBatches, ViewCollator, load_sentences, tokenize
from .errors import UserError
from .evaluation import evaluate_pairs
from .recipes import Recipe
from .repository import save_repository
from .sts import PairTask

logger = logging.getLogger(__name__)


def train(recipe: Recipe, seed: int, run: Path, accelerator: Accelerator, dev: PairTask | None) -> dict:
    """Train one seed to the end, from the newest complete checkpoint if there is one.

    Args:
        run: the run's directory; gets `metrics.jsonl`, `checkpoints/`, `best/`.
        dev: pairs that choose the best checkpoint; without them the last one is the best.

    Returns:
        What a results file says of training: the chosen step, its dev score, updates, seconds.
    """
    set_seed(seed)
    built = build(recipe)
    loader_from, batches_per_epoch = _data(recipe, seed, built, accelerator)
    batches = recipe.gradient_accumulation_steps
    updates = recipe.max_steps or math.ceil(batches_per_epoch * recipe.epochs / batches)
    model = built.model
    if recipe.gradient_checkpointing:
        model.gradient_checkpointing_enable()  # its newer name is not in transformers 5.20
    optimizer = torch.optim.AdamW(
        _parameter_groups(model, recipe.weight_decay),
        lr=recipe.learning_rate,
        betas=tuple(recipe.adam_betas),
        eps=recipe.adam_epsilon,
    )
    scheduler = get_scheduler(
        recipe.lr_scheduler,
        optimizer,
        num_warmup_steps=math.ceil(recipe.warmup_ratio * updates),
        num_training_steps=updates,
    )
    model, optimizer = accelerator.prepare(model, optimizer)
    # Every process starts from the same weights and then draws its own dropout.
    set_seed(seed, device_specific=True)
    progress = Progress(run, built, recipe, accelerator, dev)
    state = TrainingState(accelerator, model, optimizer, scheduler)
    checkpoints = run / "checkpoints"
    if newest := complete(checkpoints)[-1:]:
        progress.restore(state.load(newest[0]))
        logger.info("resumed from %s", newest[0])
    else:
        progress.evaluate(model, step=0)
    loader = iter(loader_from(progress.step * batches, updates * batches))
    bar = tqdm(
        total=updates, initial=progress.step, desc=f"Training (seed {seed})", disable=not _on_terminal(accelerator)
    )
    started = time.perf_counter()
    model.train()
    for step in range(progress.step + 1, updates + 1):
        learning_rate = scheduler.get_last_lr()[0]
        loss = _update(model, optimizer, loader, recipe, accelerator)
        if not optimizer.step_was_skipped:  # fp16 skips an update that overflowed
            scheduler.step()
        progress.add(loss)
        bar.update()
        last = step == updates
        if step % recipe.log_steps == 0 or step % recipe.eval_steps == 0 or last:
            bar.set_postfix(progress.log(step, learning_rate))
        if step % recipe.eval_steps == 0 or last:
            progress.evaluate(model, step)
            progress.seconds += time.perf_counter() - started
            started = time.perf_counter()
            state.save(checkpoints, step, progress.counters(step))
            model.train()
    bar.close()
    return {
        "best_step": progress.best_step,
        "dev": progress.best_score,
        "updates": updates,
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "seconds": round(progress.seconds, 1),
    }


def _on_terminal(accelerator: Accelerator) -> bool:
    return accelerator.is_main_process and sys.stderr.isatty()


def _data(recipe: Recipe, seed: int, built: Build, accelerator: Accelerator):
    """A function from first and last batch number to a loader, and the batches of an epoch (streams: unknown)."""
    share = {"batch_size": recipe.batch_size, "seed": seed, "rank": accelerator.process_index}
    share["world"] = accelerator.num_processes
    cut = {"tokenizer": built.tokenizer, "length": built.sentence_length}
    pad_token_id = built.serving_tokenizer.pad_token_id
    # A generator of its own: iterating must not draw from the one that dropout draws from.
    options = {"generator": torch.Generator(), "pin_memory": accelerator.device.type == "cuda", "batch_size": None}
    if recipe.streaming:
        collate = ViewCollator(built.templates, pad_token_id, tokenize=lambda columns: tokenize(columns, **cut))
        share["shuffle_buffer"] = recipe.shuffle_buffer
        stream = load_sentences(recipe)
        return lambda start, stop: DataLoader(
            StreamedBatches(stream, collate, start=start, **share), **options
        ), math.inf
    with accelerator.main_process_first():
        sentences = load_sentences(recipe)
        sentences = sentences.map(tokenize, batched=True, fn_kwargs=cut, desc="Tokenising")
    batches = Batches(sentences, ViewCollator(built.templates, pad_token_id), **share)
    logger.info("%d sentences, %d batches an epoch", len(sentences), batches.batches_per_epoch)

    return lambda start, stop: DataLoader(batches, sampler=range(start, stop), **options), batches.batches_per_epoch


def _parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
    """Weight decay leaves out biases and norms, as BERT's own training does."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _update(model, optimizer, loader, recipe: Recipe, accelerator: Accelerator) -> torch.Tensor:
    """One optimizer step; returns the mean loss of its batches, on the device."""
    batches = recipe.gradient_accumulation_steps
    total = torch.zeros((), device=accelerator.device)
    for number in range(batches):
        batch = next(loader)
        rows = batch.pop("rows")
        batch = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in batch.items()}
        final = number == batches - 1
        with nullcontext() if final else accelerator.no_sync(model):  # gradients are exchanged once an update
            loss = model(**batch, rows=rows).loss / batches
            accelerator.backward(loss)
        total += loss.detach()
    if recipe.max_grad_norm > 0:
        accelerator.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    return total


class Progress:
    """What a run has seen so far: losses, dev scores, the best model."""

    def __init__(self, run: Path, built: Build, recipe: Recipe, accelerator: Accelerator, dev: PairTask | None):
        self.run, self.built, self.recipe, self.accelerator, self.dev = run, built, recipe, accelerator, dev
        self.metrics = run / "metrics.jsonl"
        self.step, self.best_step, self.best_score, self.seconds = 0, None, None, 0.0
        self.losses: list[torch.Tensor] = []
        self.dev_results: list[dict] = []
        self.prefix = f"{run.name}/" if len(recipe.seeds) > 1 else ""  # one tracker holds all seeds
        if accelerator.is_main_process and not complete(run / "checkpoints"):
            self.metrics.write_text("", encoding="utf-8")

    def counters(self, step: int) -> dict:
        return {
            "step": step,
            "best_step": self.best_step,
            "best_score": self.best_score,
            "seconds": self.seconds,
        }

    def restore(self, counters: dict) -> None:
        """Go on from a checkpoint's counters; what was logged after it will be logged again."""
        self.step, self.best_step = counters["step"], counters["best_step"]
        self.best_score, self.seconds = counters["best_score"], counters["seconds"]
        if self.accelerator.is_main_process:
            lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)["step"] <= self.step]
            self.metrics.write_text("".join(kept), encoding="utf-8")

    def add(self, loss: torch.Tensor) -> None:
        self.losses.append(loss)  # read when it is logged: reading waits for the device

    def log(self, step: int, learning_rate: float) -> dict:
        """Write the mean loss since the last time; stop at one that is not finite."""
        loss = float(self.accelerator.reduce(torch.stack(self.losses).mean(), reduction="mean"))
        self.losses = []
        if not math.isfinite(loss):
            raise UserError(f"the loss is {loss} at step {step}: lower --learning_rate, or try --mixed_precision no")
        self._write({"step": step, "loss": loss, "learning_rate": learning_rate})
        return {"loss": f"{loss:.4f}"}

    def evaluate(self, model, step: int) -> None:
        """Score the serving model on dev; a strictly better one becomes `best/`. Without dev the newest is best."""
        score = None
        if self.dev is not None:
            score = [self._dev_score(model) if self.accelerator.is_main_process else None]
            score = broadcast_object_list(score)[0]
            self._write({"step": step, "dev": score})
        if self.dev is None or self.best_score is None or score > self.best_score:
            self.best_step, self.best_score = step, score
            if self.accelerator.is_main_process:
                self._save_best(model)
        self.accelerator.wait_for_everyone()

    def _serving(self, model):
        return self.accelerator.unwrap_model(model).model.eval()

    def _dev_score(self, model) -> float:
        serving = self._serving(model)

        def encode(texts):
            return serving.encode(texts, self.built.serving_tokenizer, batch_size=self.recipe.eval_batch_size)

        self.dev_results = evaluate_pairs(encode, [self.dev], receipt={"pooling": serving.config.pooling})
        return self.dev_results[0]["value"]

    def _save_best(self, model) -> None:
        tokenizer = self.built.serving_tokenizer
        save_repository(self.run / "best", self._serving(model), tokenizer, self.recipe, self.dev_results)

    def _write(self, line: dict) -> None:
        values = {f"{self.prefix}{key}": value for key, value in line.items() if key != "step"}
        self.accelerator.log(values, step=line["step"])
        if self.accelerator.is_main_process:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        logger.info("%s", "  ".join(f"{k} {v:.6g}" for k, v in line.items()))
