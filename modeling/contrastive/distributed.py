"""Gather rows of all processes in one tensor, with the exact gradient."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist

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


def largest(number: int, device: torch.device) -> int:
    """Return the largest number over all processes, so that all can pad to it.

    Example:
        >>> largest(7, torch.device("cpu"))  # one process
        7
    """
    if world_size() == 1:
        return number
    numbers = torch.tensor(number, device=device)
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    return int(numbers)


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

    Example:
        >>> sum_over_processes(torch.tensor(2.0))  # one process
        tensor(2.)
    """
    return share if world_size() == 1 else _SumOverProcesses.apply(share)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the complete tensor, with gradient, if FSDP has sharded it. All processes must call this together.

    Example:
        >>> full_tensor(torch.ones(2))  # not sharded
        tensor([1., 1.])
    """
    if not dist.is_available():
        return tensor
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class _AllGatherRows(torch.autograd.Function):
    """Concatenates the rows of all processes. Backward sums their gradients and keeps this process's slice."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        rank = dist.get_rank()
        ctx.local = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        # Collectives need equal shapes: pad every process to the largest share, and truncate again afterwards.
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: rows.shape[0]] = rows
        gathered = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(gathered, padded)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient[ctx.local], None


def gather_rows(rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
    """Concatenate the first dimension over all processes, in rank order; shares may differ in size.

    If every process computes its share of a loss on the result, which `sum_over_processes` adds up, or all compute the
    same loss, the mean of the gradients over processes (as in `DistributedDataParallel`) is exactly the gradient that
    one process would compute on the complete batch.

    Args:
        rows: `(n, ...)`, where `n` is this process's share and may be 0.

    Returns:
        The rows of all processes, `(sum of n, ...)`, and the slice of it with this process's rows.

    Example:
        >>> gather_rows(torch.zeros(2, 4))[0].shape  # one process: the rows themselves
        torch.Size([2, 4])
    """
    if world_size() == 1:
        return rows, slice(0, rows.shape[0])
    gathered = [torch.zeros((), dtype=torch.long, device=rows.device) for _ in range(world_size())]
    dist.all_gather(gathered, torch.tensor(rows.shape[0], device=rows.device))
    counts = [int(count) for count in gathered]
    rank = dist.get_rank()
    return _AllGatherRows.apply(rows, counts), slice(sum(counts[:rank]), sum(counts[: rank + 1]))
