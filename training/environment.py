"""The machine and the libraries: versions, device, memory, quiet logging, progress.

torch and transformers are imported inside the functions, so that `csezoo --help` is fast.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil
from tqdm import tqdm

if TYPE_CHECKING:
    import torch

# Options of glibc's `mallopt`, numbered as in its malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


_version = functools.cache(importlib.metadata.version)  # a run asks several times


def versions() -> dict[str, str]:
    """Return the versions of the libraries that a score depends on."""
    names = ("csezoo", "torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {name: _version(name) for name in names}


def default_device() -> torch.device:
    """Return the device of models outside of training: the GPU if there is one. A run has a device of its own."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, the processor's architecture for the CPU, or the kind of another device."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.machine() if device.type == "cpu" else device.type


def processor() -> str:
    """Return the name of the processor, or its architecture where the system does not say it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def peak_rss_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.is_file():  # On Linux, getrusage counts the memory of the parent process too
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def keep_freed_memory() -> None:
    """Keep the memory that this process frees, for its next allocations. Only the programs of the zoo call this.

    By default glibc returns large blocks to the system, which fills them with zeros when the next update asks for them
    again. Call `return_freed_memory` from time to time. Other C libraries are left as they are.
    """
    if libc := _glibc():
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def return_freed_memory() -> None:
    """Return the memory that this process has freed to the system. Only glibc keeps it.

    Batches of many sizes leave more and more gaps in the memory that `keep_freed_memory` keeps.
    """
    if libc := _glibc():
        libc.malloc_trim(0)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None  # reads the interpreter's file


@contextmanager
def writable_cache() -> Iterator[None]:
    """Let `datasets` write into a temporary directory where its cache cannot be written (a read-only HOME).

    Enter it before `datasets` is imported, which reads the variable.
    """
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = Path(os.environ.get("HF_DATASETS_CACHE") or os.path.join(home, "datasets")).expanduser().absolute()
    existing = next(path for path in (cache, *cache.parents) if os.path.exists(path))
    if os.access(existing, os.W_OK | os.X_OK):
        yield
        return
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        os.environ["HF_DATASETS_CACHE"] = directory
        yield


def peak_device_bytes(device: torch.device) -> int | None:
    """Return the peak memory of this process on a GPU, `None` on another device."""
    import torch

    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def show_log(*, main: bool = True, force: bool = False) -> None:
    """Print what the log of csezoo says, and of every other library only warnings.

    Args:
        main: no other process of a run; those print errors alone.
        force: replace what the caller has set up.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=force)
    logging.getLogger("csezoo").setLevel(logging.INFO if main else logging.ERROR)
    quiet_transformers()


def quiet_transformers() -> None:
    """Turn off the progress bars and warnings of transformers: this package checks what it loads itself."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


class ProgressLines(tqdm):
    """Progress as plain lines, for a file or a pipe: at most one line every three seconds, and at most a hundred."""

    def __init__(self, total: int, description: str, **options: Any):
        layout = "{desc}: {n_fmt} of {total_fmt}, {remaining} left{postfix}"
        options |= {"mininterval": 3, "miniters": max(1, total // 100), "delay": 3, "bar_format": layout}
        super().__init__(total=total, desc=description, **options)

    def display(self, *_: Any, **__: Any) -> None:
        print(self, file=self.fp, flush=True)

    def close(self) -> None:
        self.delay, self.leave = float("inf"), False  # no last line
        super().close()


def progress_bar(total: int, description: str, *, disable: bool = False) -> tqdm:
    """Return a bar with the time left. Where there is no terminal, it writes plain lines instead."""
    if sys.stderr.isatty():
        return tqdm(total=total, desc=description, disable=disable)
    return ProgressLines(total, description, disable=disable)
