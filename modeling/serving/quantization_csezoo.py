"""Quantise embeddings to a byte or a bit per dimension: `sentence_transformers.quantize_embeddings`, bit for bit."""

import torch
from transformers.utils import logging

logger = logging.get_logger(__name__)
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
FEW = 100  # sentence-transformers warns if the ranges are those of fewer embeddings


def check_precision(precision: str) -> None:
    """Refuse a precision that is not one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision: {precision!r} must be one of {', '.join(PRECISIONS)}")


def quantization_ranges(embeddings: torch.Tensor) -> torch.Tensor:
    """Return the smallest and the largest value of each dimension, `(n, d) -> (2, d)`, for `int8` and `uint8`.

    Raises:
        ValueError: there are fewer than two embeddings.

    Example:
        >>> quantization_ranges(torch.tensor([[0.0, 3.0], [1.0, -1.0]]))
        tensor([[ 0., -1.],
                [ 1.,  3.]])
    """
    if len(embeddings) < 2:
        raise ValueError("precision: one text has no range; encode many at once, or give quantize_embeddings `ranges`")
    if len(embeddings) < FEW:
        logger.warning(f"the ranges of {len(embeddings)} embeddings are not reliable; encode more texts at once")
    return torch.stack([embeddings.amin(0), embeddings.amax(0)])


def quantize_embeddings(embeddings: torch.Tensor, precision: str, ranges: torch.Tensor | None = None) -> torch.Tensor:
    r"""Quantise embeddings.

    `int8` and `uint8` cut the range :math:`[a, b]` of each dimension into 255 steps of equal width, numbered from -128
    or 0. A value outside of its range gets the nearest number. `binary` and `ubinary` keep one bit per dimension, 1
    for a positive value. Eight bits are one byte, the first dimension in its highest bit; `binary` subtracts 128 from
    the bytes.

    .. math:: q = \min(\max(\lfloor 255\,(x - a) / (b - a) \rfloor, 0), 255)

    Args:
        embeddings: `(n, d)`, computed in float32.
        precision: one of `PRECISIONS`.
        ranges: `(2, d)`, see `quantization_ranges`, for `int8` and `uint8`; by default those of the embeddings. Texts
            that are compared need the same ranges.

    Returns:
        `(n, d)` of float32, int8 or uint8; `(n, d / 8)`, rounded up, of int8 (`binary`) or uint8 (`ubinary`).

    Raises:
        ValueError: the precision is unknown, or the ranges cannot be known from fewer than two embeddings.

    Example:
        >>> quantize_embeddings(torch.tensor([[-1.0, 0.5, 0.2], [1.0, -0.5, 0.0]]), "ubinary")
        tensor([[ 96],
                [128]], dtype=torch.uint8)
    """
    check_precision(precision)
    embeddings = embeddings.float()
    if precision == "float32":
        return embeddings
    if precision in ("binary", "ubinary"):
        missing = -embeddings.shape[1] % 8
        bits = torch.nn.functional.pad((embeddings > 0).long(), (0, missing)).unflatten(1, (-1, 8))
        bytes_ = (bits << torch.arange(7, -1, -1, device=bits.device)).sum(-1)  # (n, d / 8)
        return bytes_.to(torch.uint8) if precision == "ubinary" else (bytes_ - 128).to(torch.int8)
    if ranges is None:
        ranges = quantization_ranges(embeddings) if len(embeddings) else embeddings.new_zeros(2, embeddings.shape[1])
    least, most = ranges.float()
    steps = (most - least) / 255
    steps = torch.where(steps == 0, 1, steps)  # a dimension with one value
    numbers = ((embeddings - least) / steps).floor().clamp(0, 255)
    return numbers.to(torch.uint8) if precision == "uint8" else (numbers - 128).to(torch.int8)
