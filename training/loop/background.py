"""Write files while training goes on: copies of tensors in the host's memory, and a thread that writes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

logger = logging.getLogger(__name__)


class BackgroundWriter:
    """A thread that does one job after another, in the order in which they were given.

    A job does not begin if the one before it failed. On leaving the context all jobs are waited for.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._jobs: list[Future[None]] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Do a job after those that were given before."""
        before = self._jobs[-1] if self._jobs else None

        def in_turn() -> None:
            if before is not None:
                before.result()
            job()

        self._jobs.append(self._thread.submit(in_turn))

    def wait(self) -> None:
        """Wait for all jobs, and raise the error of the first that failed."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.result()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._thread.shutdown()
        if kind is None:
            self.wait()
        for job in self._jobs:  # the error that ends the run is more important
            if failure := job.exception():
                logger.warning("what was being written is incomplete: %s", failure)


def host_copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy tensors into the host's memory, so that later updates do not change them."""
    copies = {}
    for name, tensor in tensors.items():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        copies[name] = copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.synchronize(device)
    return copies
