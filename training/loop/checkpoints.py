"""Checkpoints in safetensors and JSON: complete or absent, and resumed bit for bit."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from torch.optim.lr_scheduler import LRScheduler

from ..errors import UserError, one_line
from ..files import flush
from .distributed import fsdp, zero
from .run_receipt import SAME_RUN

KEEP = 2
STATE = "state.json"
RECEIPT = "origin"  # the key of the run's receipt in `state.json`
logger = logging.getLogger(__name__)


class TrainingState:
    """What a run needs to resume: weights, optimizer, schedule, random state and the counters of its progress.

    A checkpoint has complete tensors, even if training shards them.

    Args:
        model: the complete model, updated by `fsdp.gather_weights`.
        trained: the model that `fsdp.model_to_train` returned for it.
        receipt: of the run, see `run_receipt.run_receipt`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        trained: torch.nn.Module,
        optimizer: AcceleratedOptimizer,
        scheduler: LRScheduler,
        receipt: dict[str, object],
    ):
        self.accelerator = accelerator
        self.model, self.trained = model, trained
        self.optimizer = optimizer.optimizer  # inside accelerate's wrapper
        self.shards = zero if accelerator.distributed_type == DistributedType.DEEPSPEED else fsdp
        self.scheduler = scheduler
        self.receipt = receipt

    def save(self, directory: Path, step: int, counters: dict) -> None:
        """Write `directory/step-…` under another name, and rename it when every process has written its part."""
        target = directory / f"step-{step:08d}"
        partial = directory / f"partial-{step:08d}"
        accelerator = self.accelerator
        if accelerator.is_main_process:
            for left in directory.glob("partial-*"):
                shutil.rmtree(left)
            partial.mkdir(parents=True)
        accelerator.wait_for_everyone()
        save_file(_random_state(), partial / f"random-{accelerator.process_index}.safetensors")
        moments = self.shards.gather_moments(self.optimizer)
        if accelerator.is_main_process:
            save_model(self.model, str(partial / "model.safetensors"))  # writes tied tensors once
            save_file(moments, partial / "optimizer.safetensors")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            files = {path.name: path.stat().st_size for path in partial.iterdir()}
            scaler = accelerator.scaler.state_dict() if accelerator.scaler else None
            state = {RECEIPT: self.receipt, "files": files, "scheduler": _plain(self.scheduler), "scaler": scaler}
            (partial / STATE).write_text(json.dumps({**state, **counters}), encoding="utf-8")
            flush(partial)
            if target.exists():
                shutil.rmtree(target)
            partial.rename(target)
            for old in checkpoints(directory, self.receipt)[:-KEEP]:
                shutil.rmtree(old)
        accelerator.wait_for_everyone()

    def load(self, checkpoint: Path) -> dict:
        """Restore everything and return the counters, which include `step`.

        Raises:
            UserError: its files are damaged, or belong to another model.
        """
        try:
            state = _state(checkpoint)
            load_model(self.model, checkpoint / "model.safetensors")
            slots = load_file(checkpoint / "optimizer.safetensors")
            random_state = checkpoint / f"random-{self.accelerator.process_index}.safetensors"
            if random_state.is_file():  # a process that the run did not have before keeps its new random state
                _restore_random_state(load_file(random_state))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UserError(
                f"{checkpoint} could not be read ({one_line(error)}); delete it, and the same command resumes from "
                "the checkpoint before it"
            ) from error
        fsdp.scatter_weights(self.model, self.trained)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, tensor in slots.items():
            index, name = key.split(".")
            moments.setdefault(int(index), {})[name] = tensor
        self.scheduler.load_state_dict(state.pop("scheduler"))
        for group, rate in zip(self.optimizer.param_groups, self.scheduler.get_last_lr(), strict=True):
            group["lr"] = rate
        self.shards.scatter_moments(self.optimizer, moments)
        if (scaler := state.pop("scaler")) and self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(scaler)
        return state


def newest(directory: Path, receipt: dict[str, object], *, force: bool = False) -> Path | None:
    """Return the newest complete checkpoint of this run, or None. Skip damaged ones and those of other runs.

    Args:
        receipt: of the run now, see `run_receipt.run_receipt`.
        force: accept a checkpoint with any receipt.

    Raises:
        UserError: the receipt in the checkpoint differs from the one now.
    """
    complete = checkpoints(directory, {} if force else receipt, warn=True)
    if not complete or force:
        return complete[-1] if complete else None
    written = _state(complete[-1]).get(RECEIPT, {})
    if changed := [name for name in receipt if written.get(name) != receipt[name]]:
        raise UserError(
            f"{complete[-1]} was written with another {', '.join(changed)}; undo the change, choose another "
            "--output_dir, or use --force to resume with the change"
        )
    return complete[-1]


def checkpoints(directory: Path, receipt: dict[str, object], *, warn: bool = False) -> list[Path]:
    """List the complete checkpoints of a run, oldest first.

    Args:
        receipt: of the run; checkpoints of another recipe or seed are left out. Empty accepts them all.
        warn: log why a checkpoint was left out.
    """
    complete = []
    for path in sorted(directory.glob("step-" + "[0-9]" * 8)):
        problem = _problem(path, receipt)
        if problem is None:
            complete.append(path)
        elif warn:
            logger.warning("skipping %s: %s", path, problem)
    return complete


def _problem(checkpoint: Path, receipt: dict[str, object]) -> str | None:
    """Return why a run cannot resume from a checkpoint, or None if it can."""
    try:
        state = _state(checkpoint)
    except (OSError, ValueError):
        return f"{STATE} cannot be read"
    for name, size in state.get("files", {}).items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is incomplete"
    written = state.get(RECEIPT, {})
    if other := [name for name in SAME_RUN if name in written and written[name] != receipt.get(name, written[name])]:
        return f"it belongs to another {', '.join(other)}"
    return None


def _state(checkpoint: Path) -> dict:
    return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))


def step_of(checkpoint: Path) -> int:
    """Return the number of updates before a checkpoint was written.

    Example:
        >>> step_of(Path("checkpoints/step-00000125"))
        125
    """
    return int(checkpoint.name.removeprefix("step-"))


def _plain(scheduler: LRScheduler) -> dict:
    return {name: value for name, value in scheduler.state_dict().items() if name != "lr_lambdas"} | {
        "lr_lambdas": [None for _ in scheduler.base_lrs]
    }


def _random_state() -> dict[str, torch.Tensor]:
    """Return torch's random state. Dropout and masks depend on it; the order of the data depends only on the seed."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random_state(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
