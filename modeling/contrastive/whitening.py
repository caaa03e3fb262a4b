"""Whitening: a linear map, fitted once on a set of embeddings, that makes them isotropic."""

import torch
from torch import nn


def principal_directions(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the directions U `(H, d)` that `(n, H)` vectors span around their mean, and their variances Λ `(d,)`.

    Directions of large variance come first. Both are float64.

    Example:
        >>> directions, variances = principal_directions(torch.tensor([[0.0, 3.0], [2.0, 3.0]]))  # on a line
        >>> directions.abs().tolist(), variances.tolist()
        ([[1.0], [0.0]], [1.0])
    """
    directions, variances, _ = torch.linalg.svd(vectors.double().T.cov(correction=0))
    negligible = variances[0] * torch.finfo(torch.float64).eps * len(variances)
    spanned = min(len(vectors) - 1, int((variances > negligible).sum()))
    return directions[:, :spanned], variances[:spanned]


class Whitening(nn.Module):
    r"""y = (x - μ) W, W the leading columns of U Λ^(-1/2), where U Λ Uᵀ is the covariance of the fitted vectors.

    It is fitted to a trained encoder and saved in its checkpoint. Before it is fitted, it only drops dimensions.

    Args:
        hidden_size: H, the dimensions of the vectors.
        size: k, the dimensions of largest variance to keep. `(…, H) -> (…, k)`.

    References:
        Su et al. 2021, "Whitening Sentence Representations for Better Semantics and Faster Retrieval", algorithm 1.

    Example:
        >>> vectors = torch.randn(50, 3, dtype=torch.float64) @ torch.randn(3, 3, dtype=torch.float64) + 5
        >>> whitening = Whitening(3, 2).double()
        >>> whitening.fit(vectors)
        >>> torch.allclose(whitening(vectors).T.cov(correction=0), torch.eye(2, dtype=torch.float64))
        True
    """

    def __init__(self, hidden_size: int, size: int):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(hidden_size), requires_grad=False)
        self.kernel = nn.Parameter(torch.eye(hidden_size, size), requires_grad=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return (vectors - self.mean) @ self.kernel

    @torch.no_grad()
    def fit(self, vectors: torch.Tensor, power: float = 1.0) -> None:
        """Fit to `(n, H)` vectors, computed in float64.

        Args:
            power: p in W = U Λ^(-p/2). 1 makes all variances 1; 0 keeps them, as principal component analysis does.

        Raises:
            ValueError: there are fewer independent vectors than dimensions to keep.
        """
        directions, variances = principal_directions(vectors)
        size = self.kernel.shape[1]
        if len(variances) < size:
            raise ValueError(
                f"whitening to {size} dimensions needs vectors in as many directions; these have {len(variances)}"
            )
        self.mean.copy_(vectors.double().mean(0))
        self.kernel.copy_(directions[:, :size] * variances[:size] ** (-power / 2))
