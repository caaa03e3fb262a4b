"""Checkpoints that are complete or absent, in safetensors and JSON, and resume bit for bit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, load_model, save_file, save_model

from .errors import UserError
from .sharding import scatter_weights, shard_like, whole

KEEP = 2


class TrainingState:
    """What a run needs to go on: weights, optimizer, schedule, random state, and the run's own counters.

    A checkpoint holds whole tensors, however they are sharded in training.

    Args:
        model: the whole model, as `sharding.gather_weights` left it.
        trained: what `sharding.model_to_train` made of it.
    """

    def __init__(self, accelerator: Accelerator, model, trained, optimizer, scheduler):
        self.accelerator = accelerator
        self.model, self.trained = model, trained
        self.optimizer = optimizer.optimizer  # inside accelerate's wrapper
        self.scheduler = scheduler

    def save(self, directory: Path, step: int, counters: dict) -> None:
        """Write `directory/step-…`: under another name first, renamed when every process has written its part."""
        target = directory / f"step-{step:08d}"
        partial = directory / f"partial-{step:08d}"
        accelerator = self.accelerator
        if accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        accelerator.wait_for_everyone()
        save_file(_random_state(), partial / f"random-{accelerator.process_index}.safetensors")
        moments = {
            f"{index}.{name}": whole(tensor)
            for index, slots in self.optimizer.state_dict()["state"].items()
            for name, tensor in slots.items()
        }
        if accelerator.is_main_process:
            save_model(self.model, str(partial / "model.safetensors"))  # tied tensors once
            save_file(moments, partial / "optimizer.safetensors")
            scaler = accelerator.scaler.state_dict() if accelerator.scaler else None
            launch = {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
            text = json.dumps({**launch, "scheduler": _plain(self.scheduler), "scaler": scaler, **counters})
            (partial / "state.json").write_text(text, encoding="utf-8")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            flush(partial)
            if target.exists():
                shutil.rmtree(target)
            partial.rename(target)
            for old in complete(directory)[:-KEEP]:
                shutil.rmtree(old)
        accelerator.wait_for_everyone()

    def load(self, checkpoint: Path) -> dict:
        """Restore everything and return the counters, `step` among them.

        Raises:
            UserError: the run was launched otherwise, so it could not go on as it began.
        """
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        launch = {"processes": self.accelerator.num_processes, "precision": self.accelerator.mixed_precision}
        for name, now in launch.items():
            if state.pop(name) != now:
                raise UserError(
                    f"{checkpoint} was written under other {name} than {now}: launch as before, "
                    "or give another --output_dir"
                )
        load_model(self.model, checkpoint / "model.safetensors")
        scatter_weights(self.model, self.trained)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, tensor in load_file(checkpoint / "optimizer.safetensors").items():
            index, name = key.split(".")
            moments.setdefault(int(index), {})[name] = shard_like(parameters[int(index)], tensor)
        groups = self.optimizer.state_dict()["param_groups"]
        self.scheduler.load_state_dict(state.pop("scheduler"))
        for group, rate in zip(groups, self.scheduler.get_last_lr(), strict=True):
            group["lr"] = rate
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        if scaler := state.pop("scaler"):
            self.accelerator.scaler.load_state_dict(scaler)
        _restore_random_state(load_file(checkpoint / f"random-{self.accelerator.process_index}.safetensors"))
        return state


def complete(directory: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted(path for path in directory.glob("step-*") if (path / "state.json").is_file())


def step_of(checkpoint: Path) -> int:
    """Updates made when it was written.

    Example:
        >>> step_of(Path("checkpoints/step-00000125"))
        125
    """
    return int(checkpoint.name.removeprefix("step-"))


def replace_directory(partial: Path, target: Path) -> None:
    """Put a finished directory in another's place, by renaming: nobody ever finds half of one."""
    flush(partial)
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def flush(directory: Path) -> None:
    """Have the disk hold every file before the directory gets its final name."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def _plain(scheduler) -> dict:
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
