"""An exponential moving average of weights."""

from torch import nn


def update_average(average: nn.Module, module: nn.Module, decay: float) -> None:
    """Update an exponential moving average of a module's weights. Call it without gradients.

    Args:
        average: a module of the same class. Its parameters keep the share `decay`; its buffers are copied, because a
            batch norm's statistics are averages already.
        module: the module to average.
    """
    for mean, weight in zip(average.parameters(), module.parameters(), strict=True):
        mean.lerp_(weight, 1 - decay)
    for copy, statistic in zip(average.buffers(), module.buffers(), strict=True):
        copy.copy_(statistic)
