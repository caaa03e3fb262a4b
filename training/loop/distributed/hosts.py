"""What the hosts of a run exchange, and where they wait for each other.

It can take hours, because the main process evaluates and fits maps alone. Devices exchange vectors in groups with a
short limit, so that the others do not wait for a day when one is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from accelerate import PartialState

from csezoo.modeling.contrastive.distributed import host_group

Value = TypeVar("Value")


def from_main(value: Value) -> Value:
    """Return the value of the main process on every process. Hosts wait for it, not devices: it can take hours."""
    values = [value]
    if hosts := host_group():
        dist.broadcast_object_list(values, group=hosts)
    return values[0]


def gather_on_main(value: Value) -> list[Value] | None:
    """Return the values of all processes, in rank order, on the main process; None on the others."""
    if not (hosts := host_group()):
        return [value]
    values: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values, group=hosts)
    return values


def wait_for_all() -> None:
    """Let each host wait until all have come here. Devices go on with what they have to do."""
    if hosts := host_group():
        dist.barrier(group=hosts)


@contextmanager
def first_of_each_node() -> Iterator[None]:
    """Let one process of each node go first, so that the others find in its cache what it has prepared.

    They go on after an error of the first one too, and have it themselves.
    """
    first = PartialState().is_local_main_process
    if not first:
        wait_for_all()
    try:
        yield
    finally:
        if first:
            wait_for_all()
