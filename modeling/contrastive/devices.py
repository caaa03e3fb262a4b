"""What depends on the device that a model is on: copies to it, and its random numbers."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch


def tensor_on(device: torch.device | None, values: Sequence[Any]) -> torch.Tensor:
    """Return numbers as a tensor of a device.

    `torch.tensor(values, device=device)` waits until the device has done everything that it was told before. Here the
    copy is only queued.
    """
    return torch.tensor(values).to(device=device, non_blocking=True)


def forked_rng(device: torch.device) -> AbstractContextManager[None]:
    """Restore the random states of the host and of a device after the context. Other devices stay untouched."""
    on_host = device.type == "cpu"
    return torch.random.fork_rng([] if on_host else [device], device_type="cuda" if on_host else device.type)
