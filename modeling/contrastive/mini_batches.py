"""Large batches on small devices: encode a few rows at a time, with the gradient of the complete batch."""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint


def in_mini_batches(encode: Callable[..., torch.Tensor], size: int | None, *rows: torch.Tensor) -> torch.Tensor:
    """Encode the rows a few at a time, so that only their activations are in memory at once.

    The backward pass computes the activations again, from the same random state. The loss can therefore use all rows
    together, and the gradient is that of the complete batch, including dropout. It costs a second forward pass.

    Args:
        encode: maps rows to one tensor, each row independently.
        size: rows at a time; None encodes all at once.
        rows: the arguments of `encode`, tensors with the same number of rows.

    References:
        Gao, Zhang, Han, Callan 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"
        (gradient cache); here by `torch.utils.checkpoint`, which replays the random state.

    Example:
        >>> rows = torch.arange(6.0).view(3, 2).requires_grad_()
        >>> in_mini_batches(lambda rows: rows.exp(), 2, rows).logsumexp((0, 1)).backward()
        >>> rows.grad.shape
        torch.Size([3, 2])
    """
    if size is None or len(rows[0]) <= size:
        return encode(*rows)
    parts = zip(*(tensor.split(size) for tensor in rows), strict=True)
    return torch.cat([checkpoint(encode, *part, use_reentrant=False) for part in parts])
