"""A pretend accelerator for machines without one: the device `gpu`, whose tensors have real values.

An operator of its tensors runs on the CPU. As on a real device, it is an error to mix its tensors with those of the
host, and some operators wait for the device: those that read a value (`item`), those whose result has a size that
depends on values (`nonzero`, boolean indexing), and copies that nobody may overlap. `WAITS` counts them by the place
in the code that asked for them.

The device is registered for the whole process and cannot be taken back. Import this only in a process of its own, see
`on_pretend_device.py`.
"""

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import csezoo.modeling
import csezoo.training

aten = torch.ops.aten
# Where a wait can come from, by the name that a place begins with.
ROOTS = {
    Path(csezoo.modeling.__file__).parent: "modeling",
    Path(csezoo.training.__file__).parent: "training",
    Path(transformers.__file__).parent: "transformers",
    Path(accelerate.__file__).parent: "accelerate",
    Path(torch.__file__).parent / "optim": "torch/optim",
    Path(torch.__file__).parent / "nn" / "utils": "torch/nn/utils",
}
# Operators that may get tensors of the host beside those of the device: copies, and indices, which are copied.
MAY_MIX = (aten._to_copy.default, aten.copy_.default, aten.index.Tensor, aten.index_put.default)
MAY_MIX += (aten.index_put_.default, aten._index_put_impl_.default)
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
# Operators that read values on the host, or whose result has a size that depends on values.
READS = (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default)
SIZED_BY_VALUES = (aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default)
SIZED_BY_VALUES += (aten.unique_consecutive.default, aten.bincount.default)

WAITS: Counter[str] = Counter()


class Mixed(RuntimeError):
    """An operator got tensors of the device and of the host."""


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


_setup_privateuseone_for_python_backend("gpu", backend_module=_Backend())
_LIBRARY = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
_LIBRARY.fallback(torch.library.fallthrough_kernel)
torch.inference_mode = torch.no_grad  # a tensor that wraps another one cannot be without a version
GPU = torch.device("gpu:0")


class OnGPU(torch.Tensor):
    """A tensor of the pretend device. `inner` has its values."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "OnGPU":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=GPU,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        _wait("tolist")
        return self.inner.tolist()

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        copied = OnGPU(self.inner.detach().clone())
        copied = torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied
        return memo.setdefault(id(self), copied)


class PretendGPU(TorchDispatchMode):
    """Inside this context tensors can be made on the device."""

    def __enter__(self) -> "PretendGPU":
        # `torch.tensor(..., device=)` makes its tensor on the host first, as it does for a real device.
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(False)
        return super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _run(func, args, kwargs or {})


def place() -> str:
    """Return the innermost place in the project or its libraries that is running, as `file: function`."""
    frame = sys._getframe(1)
    while frame is not None:
        if file := _inside(frame.f_code.co_filename):
            return f"{file}: {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


@cache
def _inside(file: str) -> str | None:
    for root, name in ROOTS.items():
        if Path(file).is_relative_to(root):
            return f"{name}/{Path(file).relative_to(root).as_posix()}"
    return None


def _wait(kind: str) -> None:
    WAITS[f"{kind} in {place()}"] += 1


def _kind_of_wait(func: Any, args: tuple, kwargs: dict, mine: list, hosts: list) -> str | None:
    """Return how an operator waits for the device, or None if it does not."""
    if func in READS:
        return "read"
    if func in SIZED_BY_VALUES or (func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None):
        return "size by values"
    if func in INDEXING:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return "boolean index"
        return "copy of an index" if any(not isinstance(index, OnGPU) for index in indices) else None
    if not any(tensor.numel() for tensor in (*mine, *hosts)):  # nothing is copied
        return None
    if func is aten._to_copy.default and kwargs.get("device") is not None:
        to_host = bool(mine) and kwargs["device"].type == "cpu"
        to_device = bool(hosts) and kwargs["device"].type == "gpu"
        waits = to_host or (to_device and not kwargs.get("non_blocking"))
        return ("copy to the host" if to_host else "copy to the device") if waits else None
    if func is aten.copy_.default and mine and hosts:
        to_host = not isinstance(args[0], OnGPU)
        non_blocking = bool(args[2:] and args[2]) or bool(kwargs.get("non_blocking"))
        return None if non_blocking else ("copy to the host" if to_host else "copy to the device")
    return None


def _run(func: Any, args: tuple, kwargs: dict) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    mine = [tensor for tensor in tensors if isinstance(tensor, OnGPU)]
    hosts = [tensor for tensor in tensors if not isinstance(tensor, OnGPU)]
    to = kwargs.get("device")
    if not mine and (to is None or to.type != "gpu"):
        return func(*args, **kwargs)
    if mine and func not in MAY_MIX and any(tensor.dim() for tensor in hosts):
        raise Mixed(f"{func}: tensors of the device and of the host, in {place()}")
    if kind := _kind_of_wait(func, args, kwargs, mine, hosts):
        _wait(kind)

    def on_host(value: Any) -> Any:
        if isinstance(value, OnGPU):
            return value.inner
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "gpu" else value

    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}  # needs a real device
    args_on_host, kwargs_on_host = tree_map(on_host, (args, kwargs))
    made = func(*args_on_host, **kwargs_on_host)
    if func is aten.copy_.default:
        return args[0]
    if to is not None and to.type == "cpu":
        return made
    known = {id(tensor.inner): tensor for tensor in mine}  # what works in place returns its argument

    def on_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else OnGPU(value)

    of_host = func in INDEXING and not isinstance(args[0], OnGPU)
    return made if of_host else tree_map(on_device, made)
