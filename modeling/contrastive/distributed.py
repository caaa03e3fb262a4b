"""Gather rows of all processes in one tensor, or sum them, with the exact gradient.

Devices exchange vectors. Hosts exchange what only they need, such as the number of rows of each process: to read it
from a device would wait for all that the device has still to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

# How long a host waits for another. The main process evaluates and fits maps alone, which can take hours. Devices wait
# for each other as long as their backend does by default, ten minutes with NCCL: what they do together is short.
HOST_TIMEOUT = timedelta(days=1)
_HOSTS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # the group of the hosts, by that of all processes
_APART: ContextVar[bool] = ContextVar("apart", default=False)


def world_size() -> int:
    """Return the number of training processes, 1 without `torch.distributed` and in `apart`."""
    together = dist.is_available() and dist.is_initialized() and not _APART.get()
    return dist.get_world_size() if together else 1


@contextmanager
def apart() -> Iterator[None]:
    """Let a process compute its loss alone inside the context: `gather_rows` returns its own rows."""
    token = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(token)


def host_group() -> Any:
    """Return the group in which the hosts exchange numbers and wait for each other, None without other processes.

    All processes must call this together for the first time.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    world = dist.group.WORLD
    if world not in _HOSTS:
        _HOSTS[world] = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT)
    return _HOSTS[world]


def number_of_each(number: int) -> list[int]:
    """Return the number that each process has, in rank order. All processes must call this together."""
    if world_size() == 1:
        return [number]
    numbers = [torch.zeros((), dtype=torch.long) for _ in range(world_size())]
    dist.all_gather(numbers, torch.tensor(number), group=host_group())
    return [int(one) for one in numbers]


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: torch.Tensor) -> torch.Tensor:
        total = share.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * world_size()


def sum_over_processes(share: torch.Tensor) -> torch.Tensor:
    """Add up the shares that all processes have in a loss, or in a count. All processes must call this together.

    The gradient is that of the own share times the number of processes. So the mean of the gradients over processes,
    as in `DistributedDataParallel`, is that of the sum.
    """
    return share if world_size() == 1 else _SumOverProcesses.apply(share)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the complete tensor, with gradient, if FSDP has sharded it. All processes must call this together."""
    if not dist.is_available():
        return tensor
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class _AllGatherRows(torch.autograd.Function):
    """Concatenates the rows of all processes. Backward sums their gradients and keeps this process's slice."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        ctx.counts = counts
        # Collectives need equal shapes: pad every process to the largest share, and truncate again afterwards.
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: rows.shape[0]] = rows
        gathered = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(gathered, padded)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = [gradient.new_zeros(max(ctx.counts), *gradient.shape[1:]) for _ in ctx.counts]
        for part, own in zip(parts, gradient.split(ctx.counts), strict=True):
            part[: len(own)] = own
        received = torch.empty_like(parts[0])
        dist.reduce_scatter(received, parts)  # a share of what an all-reduce would send
        return received[: ctx.counts[dist.get_rank()]], None


def gather_rows(rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
    """Concatenate the first dimension over all processes, in rank order; shares may differ in size, or be empty.

    If every process computes its share of a loss on the result, which `sum_over_processes` adds up, or all compute the
    same loss, the mean of the gradients over processes (as in `DistributedDataParallel`) is exactly the gradient that
    one process would compute on the complete batch.

    Returns:
        The rows of all processes, `(sum of n, ...)`, and the slice of it with this process's rows.

    Example:
        >>> gather_rows(torch.zeros(2, 4))[0].shape  # one process: the rows themselves
        torch.Size([2, 4])
    """
    if world_size() == 1:
        return rows, slice(0, rows.shape[0])
    counts = number_of_each(len(rows))
    rank = dist.get_rank()
    return _AllGatherRows.apply(rows, counts), slice(sum(counts[:rank]), sum(counts[: rank + 1]))


def equal_draw(draw: torch.Tensor) -> torch.Tensor:
    """Return what the first process has drawn, in all of them. All processes must call this together.

    The random generators of processes differ, so that their dropout does. What an objective draws for the sentences of
    all processes (a negative for each, noise on the positives) must be equal, and goes through this function. The
    first process has the random state of a run in one process, and checkpoints save it: the draw follows the seed, and
    is the same after a resume.

    Args:
        draw: from torch's default generator, on the model's device, of the same shape in all processes.

    Example:
        >>> equal_draw(torch.randint(5, (3,))).shape  # one process: the draw itself
        torch.Size([3])
    """
    if world_size() == 1:
        return draw
    draw = draw.contiguous()
    dist.broadcast(draw, src=0)
    return draw
