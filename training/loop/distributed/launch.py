"""The processes of a run: how they are set up, and what the main one does for all of them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import datasets
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, parse_flag_from_env

from csezoo.modeling.contrastive.distributed import host_group

from ...environment import show_log
from ...errors import UserError
from ...recipes import Recipe
from ..precision import choose_precision, precision_of
from .fsdp import fsdp_plugin
from .hosts import from_main
from .zero import deepspeed_plugin

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


def on_main(accelerator: Accelerator, call: Callable[[], Result]) -> Result:
    """Call a function on the main process, and return its result, or raise its `UserError`, on every process."""
    answer: Any = None
    if accelerator.is_main_process:
        try:
            answer = call()
        except UserError as error:
            answer = error
    result = from_main(answer)
    if isinstance(result, UserError):
        raise result
    return result


def join_processes() -> PartialState:
    """Join the group of the processes of this launch, and that of their hosts."""
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    host_group()
    return state


def refuse_missing_processes(processes: int) -> None:
    """Refuse to train on one process if several were requested."""
    if processes == 1 and "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE") != "1":
        raise UserError(
            "several processes were requested, but each would train alone (accelerate launch --cpu starts only one, "
            "FSDP and DeepSpeed need GPUs); on CPU use ACCELERATE_USE_CPU=true accelerate launch --multi_gpu "
            "--num_processes N"
        )


def make_accelerator(recipe: Recipe, output: Path) -> Accelerator:
    """Set up the processes, precision, logging and tracker of a run.

    Raises:
        UserError: the recipe's tracker or precision does not work here, `accelerate launch` has a setting that would
            be ignored, or too few processes were started.
    """
    tracker = None if recipe.report_to == "none" else recipe.report_to
    # The heads of one stage have no gradients in the other. Without a contrastive loss, a projection may have none.
    unused = recipe.model.get("nli_classes", 0) > 0 or recipe.model.get("contrastive_weight", 1) == 0
    # Buffers are the same in every process, see `ForContrastiveLearning`.
    data_parallel = DistributedDataParallelKwargs(
        find_unused_parameters=unused, gradient_as_bucket_view=True, broadcast_buffers=False
    )
    join_processes()
    precision = choose_precision(recipe.mixed_precision)
    try:
        accelerator = Accelerator(
            mixed_precision=precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=recipe.gradient_accumulation_steps),
            log_with=tracker,
            project_dir=str(output),
            kwargs_handlers=[data_parallel],
            fsdp_plugin=fsdp_plugin(),
            deepspeed_plugin=deepspeed_plugin(recipe, precision),
        )
    except ValueError as error:
        raise UserError(f"report_to or mixed_precision: {error}; choose another value") from error
    refuse_missing_processes(accelerator.num_processes)
    _refuse_unusable(recipe, accelerator)
    show_log(main=accelerator.is_main_process, force=True)
    if not sys.stderr.isatty() or not accelerator.is_main_process:
        datasets.disable_progress_bars()  # show progress bars only on a terminal
    logger.info(
        "%d process(es) on %s, precision %s",
        accelerator.num_processes,
        accelerator.device.type,
        precision_of(accelerator),
    )
    if tracker and not accelerator.log_with:
        raise UserError(f"report_to: {tracker} is not installed; pip install {tracker}, or use --report_to none")
    return accelerator


def _refuse_unusable(recipe: Recipe, accelerator: Accelerator) -> None:
    """Refuse settings of `accelerate launch` and of the recipe that would be recorded and not used, or that fail."""
    if accelerator.device.type == "cpu" and precision_of(accelerator) == "fp16":
        raise UserError("mixed_precision: fp16 needs a GPU, and this run is on the CPU; use bf16, auto or no")
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("1", str(recipe.gradient_accumulation_steps)):
        raise UserError(
            f"accelerate launch --gradient_accumulation_steps {steps}: the recipe decides; give this option after the "
            "recipe instead"
        )
    if accelerator.state.dynamo_plugin.use_regional_compilation:
        raise UserError(
            "accelerate launch --dynamo_use_regional_compilation: it fails on a backbone without its pooler; leave "
            "this option out, and the whole model is compiled"
        )


def start_tracker(accelerator: Accelerator, recipe: Recipe) -> None:
    """Start the tracker. Call this only after `claim_run`, because the tracker writes into the run's directory."""
    if accelerator.log_with:
        plain = {key: value for key, value in recipe.to_dict().items() if isinstance(value, bool | int | float | str)}
        accelerator.init_trackers("tracker", config=plain)
