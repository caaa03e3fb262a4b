"""Checkpoints in safetensors and JSON: complete or absent, and on a CPU resumed bit for bit."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR

from ..data.streams import StreamPosition
from ..errors import UserError, one_line, others
from ..files import flush, remove, write_json
from ..hub import differing_files, sha256
from ..recipes import Recipe
from .background import host_copies
from .building import Build
from .distributed import fsdp, zero
from .distributed.hosts import gather_on_main
from .run_receipt import SAME_RUN, build_receipt

KEEP = 2
STATE = "state.json"
CHECKSUMS = "checksums.json"
# Keys in `state.json`: the run's receipt, and what must be the same to load the checkpoint.
RECEIPT, FITS = "origin", "fits"
logger = logging.getLogger(__name__)


@dataclass
class Snapshot:
    """The state of a run at an update, in the host's memory.

    Args:
        tensors: of each safetensors file, by its name without the ending.
        positions: of each process in a stream, by the name of a JSON file.
        state: what else `TrainingState.load` needs.
    """

    tensors: dict[str, dict[str, torch.Tensor]]
    positions: dict[str, dict[str, object]]
    state: dict[str, object]

    def write(self, directory: Path, step: int, counters: dict, metrics: tuple[str, bytes]) -> None:
        """Write `directory/step-…` under another name, rename it when it is complete, and delete the oldest ones.

        Args:
            counters: of the run's progress, with `step`.
            metrics: name and content of the run's metrics so far; the checkpoint gets a copy.
        """
        target, partial = directory / f"step-{step:08d}", directory / f"partial-{step:08d}"
        remove(partial)
        partial.mkdir(parents=True)
        for name, tensors in self.tensors.items():
            save_file(tensors, partial / f"{name}.safetensors")
        for name, position in self.positions.items():
            write_json(partial / f"{name}.json", position)
        name, content = metrics
        (partial / name).write_bytes(content)
        files = {path.name: path.stat().st_size for path in partial.iterdir()}
        text = json.dumps({**self.state, "files": files, **counters})
        (partial / STATE).write_text(text, encoding="utf-8")
        write_json(partial / CHECKSUMS, {path.name: sha256(path) for path in sorted(partial.iterdir())})
        flush(partial)
        if target.exists():
            discard(target)
        partial.rename(target)
        for old in checkpoints(directory, cast(dict, self.state[RECEIPT]))[:-KEEP]:
            discard(old)


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
        scheduler: LambdaLR,
        receipt: dict[str, object],
    ):
        self.accelerator = accelerator
        self.model, self.trained = model, trained
        self.optimizer = optimizer.optimizer  # inside accelerate's wrapper
        self.shards = zero if accelerator.distributed_type == DistributedType.DEEPSPEED else fsdp
        self.scheduler = scheduler
        self.receipt = receipt

    def snapshot(self, position: StreamPosition | None) -> Snapshot | None:
        """Copy the state into the host's memory. All processes must call this together.

        Args:
            position: of this process in a stream of training data.

        Returns:
            The copy on the main process, None on the others.
        """
        accelerator = self.accelerator
        moments = self.shards.gather_moments(self.optimizer)
        of_processes = gather_on_main((_random_state(accelerator.device), position))
        if of_processes is None:
            return None
        state_dict = self.model.state_dict()
        saved = dict.fromkeys(_saved_names(self.model).values())
        tensors = {
            "model": host_copies({name: state_dict[name] for name in saved}),
            "optimizer": host_copies(moments),
        }
        tensors |= {f"random-{number}": random for number, (random, _) in enumerate(of_processes)}
        positions = {
            f"stream-{number}": asdict(position) for number, (_, position) in enumerate(of_processes) if position
        }
        scaler = accelerator.scaler.state_dict() if accelerator.scaler else None
        scheduler = self.scheduler.state_dict() | {"lr_lambdas": [None] * len(self.scheduler.base_lrs)}
        state = {RECEIPT: self.receipt, "scheduler": scheduler, "scaler": scaler, FITS: self._fits()}
        return Snapshot(tensors, positions, state)

    def _fits(self) -> dict[str, object]:
        return {
            "tensors": {name: list(tensor.shape) for name, tensor in self.model.state_dict().items()},
            "trained tensors": [name for name, tensor in self.trained.named_parameters() if tensor.requires_grad],
            "optimizer": type(self.scheduler.optimizer).__name__,  # that of the recipe, also inside DeepSpeed's
        }

    def refuse_another_model(self, checkpoint: Path, content: dict) -> None:
        """Refuse a checkpoint with other tensors or of another optimizer, before anything of it is loaded.

        Args:
            content: of its `state.json`.
        """
        if changed := [name for name, value in self._fits().items() if content[FITS][name] != value]:
            raise UserError(
                f"{checkpoint}: --force cannot resume with this change of the {changed[0]}; undo it, choose another "
                f"--output_dir, or delete {checkpoint.parents[1]} to start again"
            )

    def load(self, checkpoint: Path) -> None:
        """Restore everything but the counters.

        Raises:
            UserError: its files are damaged, or belong to another model.
        """
        try:
            state = read_state(checkpoint)
            saved = load_file(checkpoint / "model.safetensors")
            self.model.load_state_dict({name: saved[first] for name, first in _saved_names(self.model).items()})
            slots = load_file(checkpoint / "optimizer.safetensors")
            random_state = checkpoint / f"random-{self.accelerator.process_index}.safetensors"
            if random_state.is_file():  # a process that the run did not have before keeps its new random state
                _restore_random_state(load_file(random_state), self.accelerator.device)
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
        self._restore_schedule(state["scheduler"])
        self.shards.scatter_moments(self.optimizer, moments)
        if state["scaler"] and self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _restore_schedule(self, written: dict) -> None:
        """Continue where a schedule was. The rates are those of the recipe now: `force` may have changed them."""
        scheduler = self.scheduler
        scheduler.load_state_dict({name: value for name, value in written.items() if name != "base_lrs"})
        factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        rates = [base * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
        scheduler._last_lr = rates
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def stream_position(checkpoint: Path, process: int) -> StreamPosition | None:
    """Return the position of a process in a stream, or None if the training data is not a stream.

    A process that the run did not have before begins at the position of the first.
    """
    files = [checkpoint / f"stream-{number}.json" for number in (process, 0)]
    found = next((file for file in files if file.is_file()), None)
    return StreamPosition(**json.loads(found.read_text(encoding="utf-8"))) if found else None


def newest(directory: Path, receipt: dict[str, object], *, force: bool = False) -> Path | None:
    """Return the newest sound checkpoint of this run, or None if the run has none yet.

    Damaged checkpoints and those of other runs are skipped with a warning, if one is left. Resuming from one before a
    damaged one ends with the same weights, later. Incomplete ones that are older than the one returned are deleted.

    Args:
        receipt: of the run now. With `force`, a checkpoint with any other is accepted.

    Raises:
        UserError: the receipt in the checkpoint differs from the one now, or every checkpoint is damaged or another
            run's.
    """
    found = damaged = foreign = None
    for path in reversed(_all(directory)):
        problem = _incomplete(path) or (None if found else _damage(path))
        if found and problem:
            logger.warning("deleting %s: %s", path, problem)  # a deletion was interrupted
            discard(path)
        elif found:
            continue
        elif problem:
            logger.warning("skipping %s: %s", path, problem)
            damaged = damaged or f"{path} is damaged ({problem})"
        elif other := None if force else _other_run(path, receipt):
            logger.warning("skipping %s: %s", path, other)
            foreign = foreign or f"{path} cannot be resumed: {other}"
        else:
            found = path
    if found is None and damaged:
        raise UserError(
            f"{damaged}, and no checkpoint before it is sound; put a copy of it back, or delete {directory} to start "
            "again"
        )
    if found is None and foreign:
        raise UserError(
            f"{foreign}; undo the change, use --force to resume with it, or delete {directory} to start again"
        )
    if found is None:
        return None
    if not force and (changed := changed_since(found, receipt)):
        raise UserError(
            f"{found} was written with {others(changed)}; undo the change, choose another "
            "--output_dir, or use --force to resume with the change"
        )
    return found


def changed_since(checkpoint: Path, receipt: dict[str, object]) -> list[str]:
    """Return the names in the receipt of a run that have another value in a checkpoint."""
    written = read_state(checkpoint)[RECEIPT]
    return [name for name in {**receipt, **written} if written.get(name) != receipt.get(name)]


def refuse_another_build(checkpoint: Path, recipe: Recipe, seed: int, built: Build) -> None:
    """Refuse a checkpoint whose recipe, base model or tokenizer is another than that of a model built now."""
    written = read_state(checkpoint)[RECEIPT]
    if changed := [name for name, value in build_receipt(recipe, seed, built).items() if written[name] != value]:
        raise UserError(f"{checkpoint} was written with {others(changed)}; undo the change")


def checkpoints(directory: Path, receipt: dict[str, object]) -> list[Path]:
    """List the complete checkpoints of a run, oldest first. Their checksums are not compared.

    Args:
        receipt: of the run; checkpoints of another recipe or seed are left out. Empty accepts them all.
    """
    return [path for path in _all(directory) if not (_incomplete(path) or _other_run(path, receipt))]


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a killed process does not leave half of it."""
    partial = checkpoint.with_name(f"partial-{checkpoint.name}")
    remove(partial)
    checkpoint.rename(partial)
    shutil.rmtree(partial)


def _all(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-" + "[0-9]" * 8))


def _incomplete(checkpoint: Path) -> str | None:
    """Return what a checkpoint lacks, without reading its tensors, or None if it is complete."""
    try:
        state = read_state(checkpoint)
    except (OSError, ValueError, RecursionError):
        return f"{STATE} cannot be read"
    for name, size in state["files"].items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is incomplete"
    return None


def _damage(checkpoint: Path) -> str | None:
    """Return which file of a checkpoint is not the one that was written, or None."""
    state = read_state(checkpoint)
    if state["step"] != step_of(checkpoint):
        return f"it is of step {state['step']}"
    try:
        checksums = json.loads((checkpoint / CHECKSUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return f"{CHECKSUMS} cannot be read"
    if not isinstance(checksums, dict) or {STATE, *state["files"]} - checksums.keys():
        return f"{CHECKSUMS} is incomplete"
    return "; ".join(differing_files(checkpoint, checksums)) or None


def _other_run(checkpoint: Path, receipt: dict[str, object]) -> str | None:
    """Return why a checkpoint belongs to another run, or None if it does not."""
    written = read_state(checkpoint)[RECEIPT]
    other = [name for name in SAME_RUN if written[name] != receipt.get(name, written[name])]
    return f"it belongs to another {', '.join(other)}" if other else None


def read_state(checkpoint: Path) -> dict:
    """Return what `state.json` of a checkpoint contains: the run's counters, with `step`, and its receipt.

    Raises:
        OSError, ValueError, RecursionError: it cannot be read, or is not such JSON.
    """
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    if not isinstance(state, dict) or {RECEIPT, FITS, "files", "step"} - state.keys():
        raise ValueError(f"{checkpoint / STATE} is not the state of a run")
    return state


def step_of(checkpoint: Path) -> int:
    """Return the number of updates before a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def _saved_names(model: torch.nn.Module) -> dict[str, str]:
    """Return for each tensor of a model the name under which it is saved: tied tensors have several, and one file."""
    names: dict[int, list[str]] = {}
    tensors = model.state_dict(keep_vars=True)  # as variables, tied tensors are one object
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return {name: min(names[id(tensor)]) for name, tensor in tensors.items()}


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return torch's random state. Dropout and masks depend on it; the order of the data depends only on the seed."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def _restore_random_state(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Restore the random state. That of another kind of device is left out: `receipt` has told of the change."""
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type], device)
