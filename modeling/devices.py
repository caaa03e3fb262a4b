"""Numbers of the host as tensors of a device, without waiting for the device."""

from collections.abc import Sequence
from typing import Any

import torch


def tensor_on(device: torch.device | None, values: Sequence[Any]) -> torch.Tensor:
    """Return numbers as a tensor of a device.

    `torch.tensor(values, device=device)` waits until the device has done everything that it was told before. Here the
    copy is only queued.

    Example:
        >>> tensor_on(torch.device("cpu"), [3, 4])
        tensor([3, 4])
    """
    return torch.tensor(values).to(device=device, non_blocking=True)
