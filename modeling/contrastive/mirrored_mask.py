"""Attention masks on a device that the host knows too, so that it need not wait for the device to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

# What rearranges a mask without computing anything. All else that is computed from a mask is a plain tensor.
REARRANGES = {
    torch.Tensor.__getitem__,
    torch.Tensor.chunk,
    torch.Tensor.expand,
    torch.Tensor.flatten,
    torch.Tensor.long,
    torch.Tensor.repeat,
    torch.Tensor.split,
    torch.Tensor.unflatten,
    torch.Tensor.unsqueeze,
    torch.Tensor.view,
    torch.cat,
    torch.ones_like,
    F.pad,
}


class MirroredMask(torch.Tensor):
    """An attention mask on a device, with its mirror on the host.

    Slices, reshaped and joined masks have a mirror too. Any other function of it, and one that also reads plain
    tensors, returns plain tensors.

    Example:
        >>> mask = torch.tensor([[[1, 1], [1, 0]]])  # as if this were on a GPU
        >>> mirrored = MirroredMask.of(mask, host=mask.clone())
        >>> on_host(mirrored[:, 1].flatten(0, 1)), type(mirrored.sum()) is torch.Tensor
        (tensor([1, 0]), True)
    """

    host: torch.Tensor

    @classmethod
    def of(cls, mask: torch.Tensor, host: torch.Tensor) -> MirroredMask:
        """Return a mask with its mirror, which has the same shape and values."""
        mirrored = mask.as_subclass(cls)
        mirrored.host = host
        return mirrored

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Sequence[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*tree_map(plain, args), **tree_map(plain, kwargs))
            if func not in REARRANGES or any(type(value) is torch.Tensor for value in tree_leaves(args)):
                return result
            host = func(*tree_map(on_host, args), **kwargs)
            return cls.of(result, host) if isinstance(result, torch.Tensor) else tuple(map(cls.of, result, host))


def plain(value: Any) -> Any:
    """Return a mask without its mirror, and anything else as it is."""
    return value.as_subclass(torch.Tensor) if isinstance(value, MirroredMask) else value


def on_host(mask: Any) -> Any:
    """Return a mask's values on the host, or None if only the device has them. Return what is no tensor as it is."""
    if isinstance(mask, MirroredMask):
        return mask.host
    return mask if not isinstance(mask, torch.Tensor) or mask.device.type == "cpu" else None
