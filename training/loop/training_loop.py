"""The training loop: train one seed of a recipe, and write a run directory with the best model."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import PreTrainedModel

from csezoo.modeling.contrastive.distributed import full_tensor
from csezoo.modeling.contrastive.mirrored_mask import MirroredMask
from csezoo.modeling.contrastive.training_model import ForContrastiveLearning

from ..environment import progress_bar, return_freed_memory
from ..errors import UserError, as_user_error, others
from ..evaluation.suites import Task
from ..files import flush
from ..loading.served_encoder import ServedEncoder
from ..pictures.curves import draw_prefix_tuning, draw_training_curves
from ..recipes import Recipe
from .background import BackgroundWriter
from .best_model import BestModel
from .building import Build, build_on, choose_layout, is_compiled
from .checkpoints import (
    RECEIPT,
    TrainingState,
    changed_since,
    checkpoints,
    newest,
    read_state,
    step_of,
    stream_position,
)
from .distributed.fsdp import gather_weights, model_to_train
from .distributed.launch import on_main
from .health import refuse_equal_views, refuse_lone_sentence, refuse_padding_dependence, warn_if_solved
from .non_finite import NonFinite, keep_batch
from .optimizers import make_optimizer, make_schedule
from .precision import float32_attention, precision_of
from .run_data import RunData
from .run_receipt import refuse_mixed_seeds, run_receipt
from .training_log import GRADIENT_NORM, PADDING_TOKENS, TrainingLog, seed_name

logger = logging.getLogger(__name__)
LOOK_AT = 10  # updates of the contrastive stage whose losses are looked at; one may have a single sentence, and loss 0


@dataclass
class Stage:
    """A part of a run with its own data, trained parameters, optimizer and schedule.

    Args:
        name: `nli` (only labelled pairs) or `contrastive`.
        start: updates of the run before this stage.
        updates: updates in this stage.
        decay: length of the schedule in updates, which may be longer than the stage.
        learning_rate: the highest of the schedule.
    """

    name: str
    start: int
    updates: int
    decay: int
    learning_rate: float

    @property
    def stop(self) -> int:
        return self.start + self.updates


@dataclass
class SeedRun:
    """A seed of a recipe in training. The `writer` writes checkpoints while it trains on.

    Args:
        updates: of all stages.
        begin: called when nothing can refuse the recipe any more, before anything of the run is changed.
    """

    directory: Path
    recipe: Recipe
    seed: int
    built: Build
    data: RunData
    accelerator: Accelerator
    receipt: dict[str, object]
    log: TrainingLog
    best: BestModel
    writer: BackgroundWriter
    updates: int
    begin: Callable[[], None]

    def save(self, state: TrainingState) -> None:
        """Copy the state, and write a checkpoint of it while the run trains on.

        The metrics that were logged before, and the weights that the checkpoint names, reach the disk first. The
        weights that no checkpoint needs any more are deleted.
        """
        log, weights = self.log, self.best.weights
        snapshot = state.snapshot(self.data.position)
        if snapshot is None:
            return
        directory, step = self.directory / "checkpoints", log.step
        counters = {**log.counters(), **self.best.counters()}
        metrics = log.metrics.name, log.metrics.read_bytes()

        def write() -> None:
            flush(log.metrics)
            counters["best_weights"] = {step: weights.checksums[step] for step in counters["best_weights"]}
            snapshot.write(directory, step, counters, metrics)
            named = [read_state(checkpoint)["best_weights"] for checkpoint in checkpoints(directory, {})]
            weights.delete_others({int(step) for steps in named for step in steps})

        self.writer.submit(write)

    def restore(self, state: TrainingState, checkpoint: Path) -> None:
        """Continue where a checkpoint was written."""
        counters = read_state(checkpoint)
        state.refuse_another_model(checkpoint, counters)
        self.best.restore(counters)  # before the weights, because it changes those of the model
        if step_of(checkpoint) == self.updates or self.best.stopped:
            self.best.refuse_another_choice(counters)
        state.load(checkpoint)
        on_main(self.accelerator, self.begin)
        self.data.position = stream_position(checkpoint, self.accelerator.process_index)
        self.log.restore(checkpoint, counters)
        if changed := changed_since(checkpoint, self.receipt):
            logger.warning("resumed with %s", others(changed))
            self.log.changed = list(dict.fromkeys([*self.log.changed, *changed]))


def train(
    recipe: Recipe,
    served: ServedEncoder | None,
    seed: int,
    directory: Path,
    accelerator: Accelerator,
    dev: Sequence[Task],
    tests: Sequence[Task],
    finished: dict[int, dict],
    begin: Callable[[], None],
) -> dict:
    """Train one seed to the end, from the newest complete checkpoint if there is one.

    Args:
        served: how the base model is served, see `follow_base`.
        directory: for `metrics.jsonl`, `checkpoints/` and `best/`.
        dev: tasks to select the best model with. Without them, the last model is the best.
        tests: tasks that score the best model in the end.
        finished: the receipts of the finished seeds of the run, by seed. This one is among them if it was finished
            with another recipe, and `force` resumes it with the change.
        begin: see `SeedRun`.

    Returns:
        The training part of a results file: the best step, its dev score, the number of updates, the `cost` and the
        receipt.
    """
    if len(recipe.seeds) > 1:
        logger.info("%s", seed_name(recipe, seed))
    set_seed(seed)
    if accelerator.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(accelerator.device)
    built = build_on(recipe, served)
    if recipe.gradient_checkpointing:
        _checkpoint_gradients(built.model)
    built.model.to(accelerator.device)
    choose_layout(recipe, built.model, accelerator)
    data = RunData(recipe, seed, built, accelerator)
    stages = plan_stages(recipe, data)
    receipt = run_receipt(recipe, seed, built, data, accelerator, dev, tests)
    refuse_mixed_seeds({**finished, seed: receipt}, force=recipe.force)
    checkpoint = on_main(accelerator, partial(newest, directory / "checkpoints", receipt, force=recipe.force))
    if checkpoint is None and seed in finished:
        raise UserError(
            f"{directory} is finished, and has no checkpoint that --force could resume with the change; undo it, "
            "choose another --output_dir, or delete it to start again"
        )
    if checkpoint and step_of(checkpoint) > stages[-1].stop:
        raise UserError(
            f"{checkpoint} has more updates than the {stages[-1].stop} that the recipe asks for; give more, or choose "
            "another --output_dir"
        )
    log = TrainingLog(directory, accelerator)
    trainable = [parameter for parameter in built.model.parameters() if parameter.requires_grad]
    with float32_attention(built.model, recipe):
        refuse_padding_dependence(built, recipe)
    with BackgroundWriter() as writer:
        best = BestModel(directory, built, recipe, dev, log)
        updates = stages[-1].stop
        run = SeedRun(directory, recipe, seed, built, data, accelerator, receipt, log, best, writer, updates, begin)
        if checkpoint is None:
            on_main(accelerator, begin)
            log.clear_metrics()
            with float32_attention(built.model, recipe):
                score = on_main(accelerator, partial(best.score_base_model, [*dev, *tests]))
                best.evaluate(0, writer, counts=False, score=score)
        title = f"training ({seed_name(recipe, seed)})"
        bar = progress_bar(updates, title, disable=not accelerator.is_main_process)
        for stage in stages:
            if not best.stopped:
                train_stage(stage, run, trainable, bar, checkpoint)
        bar.close()
    soup = on_main(accelerator, partial(best.write, seed))
    mapped_by = "whitening" if recipe.whitening else "flow" if recipe.flow else None
    if accelerator.is_main_process:  # a run that resumes has restored its metrics now
        draw_prefix_tuning(log.metrics)
        if log.step:
            draw_training_curves(log.metrics, best.best_step)
            if soup == [0]:
                with_map = f", and a {mapped_by} after them" if mapped_by else ""
                logger.warning("dev never improved: best/ has the initial weights%s", with_map)
    return {
        "best_step": best.best_step,
        "dev": best.best_score,
        **({"soup": soup} if recipe.soup else {}),
        **({"mapped_by": mapped_by} if mapped_by else {}),
        "updates": log.step,
        "processes": accelerator.num_processes,
        "precision": precision_of(accelerator),
        **log.cost(),
        **({"resumed_with_another": log.changed} if log.changed else {}),
        RECEIPT: receipt,
    }


def plan_stages(recipe: Recipe, data: RunData) -> list[Stage]:
    """Return the stage on labelled pairs, if the recipe has one, and the contrastive stage, which may be empty."""
    per_update = recipe.gradient_accumulation_steps
    updates = recipe.max_steps
    if updates is None:
        updates = math.ceil(data.batches_per_epoch * recipe.epochs / per_update)
    before = recipe.nli_steps
    if recipe.nli_epochs:
        before = math.ceil(data.nli_batches_per_epoch * recipe.nli_epochs / per_update)
    contrastive = Stage("contrastive", before, updates, updates, recipe.learning_rate)
    if not before:
        return [contrastive]
    decay = recipe.nli_decay_steps or updates or before
    if decay < before:
        raise UserError(
            f"nli_steps: the schedule ends after {decay} of the {before} updates on labelled pairs; give "
            f"--nli_decay_steps {before} or more"
        )
    rate = recipe.learning_rate if recipe.nli_learning_rate is None else recipe.nli_learning_rate
    return [Stage("nli", 0, before, decay, rate), contrastive]


def train_stage(
    stage: Stage, run: SeedRun, trainable: list[torch.nn.Parameter], bar: tqdm, checkpoint: Path | None
) -> None:
    """Train one stage; resume inside it, or skip it if it is finished."""
    recipe, accelerator, model, log = run.recipe, run.accelerator, run.built.model, run.log
    done_so_far = step_of(checkpoint) if checkpoint else 0
    if done_so_far > stage.stop or stage.updates == 0:
        return
    for parameter in trainable:
        parameter.requires_grad_()
    model.begin_stage(stage.name)
    trained = model_to_train(model, accelerator)
    wrapped, optimizer, scheduler = start_stage(stage, recipe, trained, accelerator)
    # From here on each process has its own dropout; the weights are the same on all.
    set_seed(run.seed + stage.start, device_specific=True)
    state = TrainingState(accelerator, model, trained, optimizer, scheduler, run.receipt)
    if checkpoint and done_so_far > stage.start:
        run.restore(state, checkpoint)
        logger.info("resumed from %s", checkpoint)
    bar.update(log.step - bar.n)
    per_update = recipe.gradient_accumulation_steps
    done = (log.step - stage.start) * per_update
    loader = run.data.batches(stage.name, done, stage.updates * per_update, before=stage.start * per_update)
    started = time.perf_counter()
    wrapped.train()
    resumed_at, config, early = log.step, model.config, []
    contrasts = config.contrastive_weight > 0 or bool(config.matryoshka_dims)
    for step in range(resumed_at + 1, stage.stop + 1):
        if run.best.stopped:
            break
        learning_rate = float(scheduler.get_last_lr()[0])
        first = stage.name == "contrastive" and step == resumed_at + 1 and contrasts
        check = partial(refuse_equal_views, run.built, recipe, accelerator) if first else None
        with nullcontext() if contrasts else as_user_error():  # there may be no other loss
            losses, rows = update(wrapped, optimizer, loader, recipe, accelerator, check)
        if first:
            refuse_lone_sentence(losses["loss"], recipe)
        # fp16 skips an update that overflowed and continues. An update that DeepSpeed skips ends the run.
        if accelerator.scaler and optimizer.step_was_skipped:
            losses[GRADIENT_NORM].zero_()
        else:
            scheduler.step()
            with torch.no_grad():
                trained.after_update()
        log.add(step, losses, rows)
        if "contrastive" in losses and step <= stage.start + LOOK_AT:
            early.append(losses["contrastive"])
            if step == stage.start + LOOK_AT:
                warn_if_solved(step, float(torch.stack(early).max()))
        bar.update()
        last = step == stage.stop
        if step % recipe.log_steps == 0 or step % recipe.eval_steps == 0 or last:
            try:
                bar.set_postfix(log.log(learning_rate), refresh=False)
            except NonFinite as error:
                raise _stopped_at(error, stage, run) from None
        if step % recipe.eval_steps == 0 or last:
            seconds = time.perf_counter() - started  # logging has waited for the device
            log.update_seconds += seconds
            run.writer.wait()  # for the checkpoint before: one at a time, because each is a copy of everything
            started = time.perf_counter()
            gather_weights(trained, model)
            with float32_attention(model, recipe):
                run.best.evaluate(step, run.writer, counts=stage.name == "contrastive")
                if stage.name == "nli":
                    log.diagnose(model, run.data.probe())
            log.seconds += seconds + time.perf_counter() - started
            run.save(state)
            return_freed_memory()
            wrapped.train()
            started = time.perf_counter()
    accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
    accelerator.free_memory()  # the next stage trains other parameters and wraps the model again


def start_stage(
    stage: Stage, recipe: Recipe, model: ForContrastiveLearning, accelerator: Accelerator
) -> tuple[torch.nn.Module, AcceleratedOptimizer, LambdaLR]:
    """Freeze what the stage does not train, wrap the model, and make the stage's optimizer and schedule."""
    for parameter in model.frozen_parameters(stage.name):
        parameter.requires_grad_(False)
    groups = _parameter_groups(model, recipe.weight_decay)
    optimizer = make_optimizer(recipe, groups, stage.learning_rate, fp16=accelerator.scaler is not None)
    scheduler = make_schedule(recipe, optimizer, stage.decay)
    with warnings.catch_warnings():
        # accelerate 1.15 gives it to torch 2.13, which has another name for it.
        warnings.filterwarnings("ignore", ".broadcast_buffers. is deprecated", FutureWarning)
        wrapped, optimizer = accelerator.prepare(model, optimizer)
    return wrapped, optimizer, scheduler


def _stopped_at(error: NonFinite, stage: Stage, run: SeedRun) -> UserError:
    """Keep the batches of the update that is not finite, and return the error that ends the run."""
    per_update = run.recipe.gradient_accumulation_steps
    first = (error.step - 1 - stage.start) * per_update
    position = (stage.name, first, first + per_update)
    before = stage.start * per_update
    run.writer.wait()
    written = checkpoints(run.directory / "checkpoints", run.receipt)
    return keep_batch(
        run.directory / "non_finite" / f"step-{error.step:08d}",
        error,
        list(run.data.batches(*position, before=before)),
        run.data.rows(*position, before=before),
        written[-1] if written else None,
        run.accelerator.process_index,
    )


def _checkpoint_gradients(model: PreTrainedModel) -> None:
    try:
        with warnings.catch_warnings():
            # transformers 5.20 does not have the new name yet.
            warnings.filterwarnings("ignore", ".gradient_checkpointing_enable. is deprecated", FutureWarning)
            model.gradient_checkpointing_enable()
    except ValueError as error:
        raise UserError(f"gradient_checkpointing: {error}; set it to false") from error


def _parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
    """Group the parameters: biases and norms have no weight decay, as in BERT's training."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]


def on_device(batch: dict[str, Any], device: torch.device, mirror: bool = True) -> dict[str, Any]:
    """Copy the tensors of a batch to a device without waiting for it.

    With `mirror`, attention masks on a GPU keep a mirror on the host, with which encoders leave out padding.
    """
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
    if mirror and device.type == "cuda":
        masks = [name for name in tensors if name.endswith("attention_mask")]
        moved |= {name: MirroredMask.of(moved[name], host=tensors[name]) for name in masks}
    return batch | moved


def update(
    model: torch.nn.Module,
    optimizer: AcceleratedOptimizer,
    loader: Iterator[dict[str, Any]],
    recipe: Recipe,
    accelerator: Accelerator,
    check: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
) -> tuple[dict[str, torch.Tensor], int]:
    """Make one optimizer step.

    Args:
        check: called with the token ids and the embeddings of each batch, before the backward pass.

    Returns:
        The losses on the device, as means over the batches of the update: the loss, its named parts, the tokens of
        padding that all encoder passes of the update computed, and last the norm of the gradient. Then the number of
        rows.
    """
    per_update, rows = recipe.gradient_accumulation_steps, 0
    trained = next(module for module in model.modules() if isinstance(module, ForContrastiveLearning))
    trained.pop_padding_tokens()  # those before the update, such as of diagnostics
    padding: int | torch.Tensor = 0
    totals: dict[str, torch.Tensor] = {}
    for _ in range(per_update):
        batch = next(loader)
        rows += next(len(value) for value in batch.values() if isinstance(value, torch.Tensor))
        batch = on_device(batch, accelerator.device, mirror=not is_compiled(accelerator))
        with accelerator.accumulate(model):  # exchanges gradients once per update
            with accelerator.autocast():  # accelerate does not wrap the forward under FSDP
                output = model(**batch)
            if is_compiled(accelerator):  # compiled passes count nothing: count what they read
                masks = [value for name, value in batch.items() if name.endswith("attention_mask")]
                padding = padding + sum((mask == 0).sum() for mask in masks)
            if check:
                check(batch["input_ids"], output.embeddings)
            accelerator.backward(output.loss)  # divides by the number of batches
        for name, loss in {"loss": output.loss, **output.losses}.items():
            totals[name] = totals.get(name, 0) + loss.detach() / per_update
    padding = padding + trained.pop_padding_tokens()
    # Added, because to copy a number to a device is to wait for it. Logged as a mean over processes.
    totals[PADDING_TOKENS] = torch.zeros((), device=accelerator.device) + padding * accelerator.num_processes
    norm = accelerator.clip_grad_norm_(model.parameters(), recipe.max_grad_norm or math.inf)
    totals[GRADIENT_NORM] = torch.as_tensor(full_tensor(norm), device=accelerator.device)  # a float under DeepSpeed
    optimizer.step()
    optimizer.zero_grad()
    return totals, rows
