"""An exponential moving average of weights."""

import torch
from torch import nn


def update_average(average: nn.Module, module: nn.Module, decay: float) -> None:
    """Update an exponential moving average of a module's weights. Call it without gradients.

    Args:
        average: a module of the same class. Its parameters keep the share `decay`; its buffers are copied, because a
            batch norm's statistics are averages already.
        module: the module to average.

    Raises:
        ValueError: the weights have less than single precision, in which a small step of an average is rounded away.
    """
    for dtype in {each.dtype for each in average.parameters()}:
        if torch.finfo(dtype).bits < 32:
            raise ValueError(f"ema_decay: an average of {dtype} weights would not move; train float32 weights")
    torch._foreach_lerp_(list(average.parameters()), list(module.parameters()), 1 - decay)
    if statistics := list(module.buffers()):
        torch._foreach_copy_(list(average.buffers()), statistics)
