"""δ and κ: what DiffAug's prefixes have learned (section 3.2 of the paper)."""

from collections.abc import Iterable

import torch

from ...objectives import at_least_float32


def representation_divergence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return δ, the mean distance between the two representations of positive pairs (section 3.2, eq. 6).

    Args:
        first, second: `(B, H)`. They are not normalised, and the distances are not squared.

    Example:
        >>> representation_divergence(torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 4.0], [1.0, 1.0]]))
        tensor(2.5000)
    """
    return torch.linalg.vector_norm(at_least_float32(first) - at_least_float32(second), dim=-1).mean()


def weight_convergence(
    layer_keys: Iterable[torch.Tensor],
    layer_values: Iterable[torch.Tensor],
    prefix_keys: Iterable[torch.Tensor],
    prefix_values: Iterable[torch.Tensor],
) -> torch.Tensor:
    r"""Return κ, how much longer the language model's keys and values are than the prefixes' (section 3.2, eq. 7, 8).

    .. math:: \kappa = \frac{1}{2M} \sum_m \Big[\frac{\|K^m\|_{2,1}}{L} - \frac{\|P_k^m\|_{2,1}}{l}\Big]
              + \Big[\frac{\|V^m\|_{2,1}}{L} - \frac{\|P_v^m\|_{2,1}}{l}\Big]

    where :math:`\|A\|_{2,1}` sums the lengths of the rows, so that every term is a difference of mean lengths.

    Args:
        layer_keys, layer_values: for each of the M layers `(L, H)`: rows are tokens, heads side by side.
        prefix_keys, prefix_values: for each layer `(l, H)`.

    Example:
        >>> token, slot = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0], [0.0, 0.0]])
        >>> weight_convergence([token], [token], [slot], [slot])  # 5 - (2 + 0) / 2
        tensor(4.)
    """

    def mean_length(rows: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(at_least_float32(rows), dim=-1).mean()

    pairs = [*zip(layer_keys, prefix_keys, strict=True), *zip(layer_values, prefix_values, strict=True)]
    return torch.stack([mean_length(layer) - mean_length(prefix) for layer, prefix in pairs]).mean()
