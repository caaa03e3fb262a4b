"""The machine and the libraries: versions, device, memory, quiet logging.

torch and transformers are imported where they are used, so that `csezoo --help` is quick.
"""

from __future__ import annotations

import importlib.metadata
import platform
import resource
import sys
from pathlib import Path


def versions() -> dict[str, str]:
    """Versions of what a score depends on."""
    names = ("csezoo", "torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {name: importlib.metadata.version(name) for name in names}


def device() -> str:
    """What computes: the accelerator's name, or the processor's kind."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()


def peak_rss_bytes() -> int:
    """The most memory this process has held."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, whose getrusage counts what the process that started this one held
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_device_bytes() -> int | None:
    """The most memory it has held of its GPU, `None` on CPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def quiet_transformers() -> None:
    """What is loaded is judged here: neither bars nor warnings of the library."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
