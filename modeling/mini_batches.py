"""Large batches on small devices: rows encoded a few at a time, with the gradient of the whole batch."""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint


def in_mini_batches(encode: Callable[..., torch.Tensor], size: int | None, *rows: torch.Tensor) -> torch.Tensor:
    """What `encode` makes of the rows, so many at a time; the activations of only so many are in memory at once.

    They are made again in the backward pass, from the same random state, so that the loss may take all rows together
    and the gradient is that of the whole batch, dropout and all. It costs a second forward pass.

    Args:
        encode: rows to one tensor, each row by itself.
        size: rows at a time; all at once if None.
        rows: tensors of as many rows, the arguments of `encode`.

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
