"""Checkpoints that are complete or absent, in safetensors and JSON, and resume bit for bit."""

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
from .origin import IDENTITY

KEEP = 2
STATE = "state.json"
logger = logging.getLogger(__name__)


class TrainingState:
    """What a run needs to go on: weights, optimizer, schedule, random state, and the run's own counters.

    A checkpoint holds whole tensors, however they are sharded in training.

    Args:
        model: the whole model, as `fsdp.gather_weights` left it.
        trained: what `fsdp.model_to_train` made of it.
        origin: what the run's numbers depend on, see `origin.origin`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        trained: torch.nn.Module,
        optimizer: AcceleratedOptimizer,
        scheduler: LRScheduler,
        origin: dict[str, object],
    ):
        self.accelerator = accelerator
        self.model, self.trained = model, trained
        self.optimizer = optimizer.optimizer  # inside accelerate's wrapper
        self.shards = zero if accelerator.distributed_type == DistributedType.DEEPSPEED else fsdp
        self.scheduler = scheduler
        self.origin = origin

    def save(self, directory: Path, step: int, counters: dict) -> None:
        """Write `directory/step-…`: under another name first, renamed when every process has written its part."""
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
            save_model(self.model, str(partial / "model.safetensors"))  # tied tensors once
            save_file(moments, partial / "optimizer.safetensors")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            files = {path.name: path.stat().st_size for path in partial.iterdir()}
            scaler = accelerator.scaler.state_dict() if accelerator.scaler else None
            state = {"origin": self.origin, "files": files, "scheduler": _plain(self.scheduler), "scaler": scaler}
            (partial / STATE).write_text(json.dumps({**state, **counters}), encoding="utf-8")
            flush(partial)
            if target.exists():
                shutil.rmtree(target)
            partial.rename(target)
            for old in checkpoints(directory, self.origin)[:-KEEP]:
                shutil.rmtree(old)
        accelerator.wait_for_everyone()

    def load(self, checkpoint: Path) -> dict:
        """Restore everything and return the counters, `step` among them.

        Raises:
            UserError: its files are damaged, or hold another model.
        """
        try:
            state = _state(checkpoint)
            load_model(self.model, checkpoint / "model.safetensors")
            slots = load_file(checkpoint / "optimizer.safetensors")
            random_state = checkpoint / f"random-{self.accelerator.process_index}.safetensors"
            if random_state.is_file():  # a process that there was not before draws its own
                _restore_random_state(load_file(random_state))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UserError(
                f"{checkpoint} could not be read ({one_line(error)}): delete it, and the same command goes on from "
                "the one before"
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


def newest(directory: Path, origin: dict[str, object], *, force: bool = False) -> Path | None:
    """The newest complete checkpoint of this run, to go on from; a damaged or foreign one is passed over.

    Args:
        origin: what the run's numbers depend on now, see `origin.origin`.
        force: go on from a checkpoint of any origin.

    Raises:
        UserError: something else it depends on has changed since that was written.
    """
    found = checkpoints(directory, {} if force else origin, warn=True)
    if not found or force:
        return found[-1] if found else None
    written = _state(found[-1]).get("origin", {})
    if changed := [name for name in origin if written.get(name) != origin[name]]:
        raise UserError(
            f"{found[-1]} was written under another {', '.join(changed)}: go back to what it was, give another "
            "--output_dir, or --force to go on with what is now"
        )
    return found[-1]


def checkpoints(directory: Path, origin: dict[str, object], *, warn: bool = False) -> list[Path]:
    """The complete checkpoints of a run, oldest first.

    Args:
        origin: tells the run's own; those of any where it is empty.
        warn: say of the others why they are none.
    """
    found = []
    for path in sorted(directory.glob("step-" + "[0-9]" * 8)):
        problem = _problem(path, origin)
        if problem is None:
            found.append(path)
        elif warn:
            logger.warning("%s is passed over: %s", path, problem)
    return found


def _problem(checkpoint: Path, origin: dict[str, object]) -> str | None:
    """Why a run cannot go on from it, if so."""
    try:
        state = _state(checkpoint)
    except (OSError, ValueError):
        return f"no {STATE} that can be read"
    for name, size in state.get("files", {}).items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is not whole"
    written = state.get("origin", {})
    if foreign := [name for name in IDENTITY if name in written and written[name] != origin.get(name, written[name])]:
        return f"it is of another {', '.join(foreign)}"
    return None


def _state(checkpoint: Path) -> dict:
    return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))


def step_of(checkpoint: Path) -> int:
    """Updates made when it was written.

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
    """Torch draws all randomness of a training step (dropout, masks); the order of the data is a function of seed."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random_state(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
