"""An exponential moving average of weights."""

import torch
from torch import nn


def update_average(average: nn.Module, module: nn.Module, decay: float) -> None:
    """Update an exponential moving average of a module's weights. Call it without gradients.

    Args:
        average: a module of the same class. Its parameters keep the share `decay`; its buffers are copied, because a
            batch norm's statistics are averages already.
        module: the module to average.
    """
    torch._foreach_lerp_(list(average.parameters()), list(module.parameters()), 1 - decay)
    if statistics := list(module.buffers()):
        torch._foreach_copy_(list(average.buffers()), statistics)
