"""Contrastive losses and the geometry they shape, on vectors of any floating type.

Half-precision inputs are compared in float32 and autocast is off inside: similarities divided by a small temperature
lose their order in bf16.
"""

import torch
import torch.nn.functional as F


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """Vectors of length one, in float32 or better."""
    if vectors.dtype in (torch.float16, torch.bfloat16):
        vectors = vectors.float()
    return F.normalize(vectors, dim=-1)


def cosine_logits(left: torch.Tensor, right: torch.Tensor, temperature: float) -> torch.Tensor:
    """Cosine of every row of `left` (n, H) with every row of `right` (m, H), divided by `temperature`: (n, m)."""
    with torch.autocast(left.device.type, enabled=False):
        return _unit(left) @ _unit(right).T / temperature


def info_nce(
    anchors: torch.Tensor,
    positives: torch.Tensor,
    hard_negatives: torch.Tensor | None = None,
    *,
    temperature: float,
    hard_negative_weight: float = 0.0,
) -> torch.Tensor:
    r"""The SimCSE loss: find each anchor's positive among the positives (and hard negatives) of the whole batch.

    Without hard negatives (SimCSE eq. 4), with :math:`s_{ij} = \cos(z_i, z^+_j)/\tau`:

    .. math:: \ell = \frac{1}{B} \sum_i \Big[ \log \sum_j e^{s_{ij}} - s_{ii} \Big]

    Hard negatives (eq. 5) enter the denominator of every anchor. `hard_negative_weight` is a *log* weight: it is
    added, after the division by the temperature, to the logit of the anchor's *own* hard negative only, so 0 means
    weight 1.

    Args:
        anchors, positives: `(B, H)`; row i of one belongs to row i of the other.
        hard_negatives: `(B, H)`, optional.
        temperature: the published temperature τ (0.05); sentence-transformers' `scale` is 1/τ.
        hard_negative_weight: log weight of the own hard negative.

    Returns:
        The mean loss over the anchors, a scalar of at least float32.

    References:
        Gao et al. 2021, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", sections 3 and 4.

    Relations:
        `MultipleNegativesRankingLoss` of sentence-transformers with cosine similarity and scale 1/τ is the same loss
        at `hard_negative_weight=0`.

    Example:
        >>> z = torch.eye(3)
        >>> round(info_nce(z, z, temperature=1.0).item(), 4)  # log(e + 2) - 1
        0.5514
    """
    logits = cosine_logits(anchors, positives, temperature)  # (B, B)
    if hard_negatives is not None:
        own = torch.eye(len(anchors), dtype=logits.dtype, device=logits.device)
        hard = cosine_logits(anchors, hard_negatives, temperature) + hard_negative_weight * own  # (B, B)
        logits = torch.cat([logits, hard], dim=1)  # (B, 2B)
    return F.cross_entropy(logits, torch.arange(len(anchors), device=logits.device))


def alignment(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of positive pairs on the unit sphere (Wang & Isola 2020, eq. 1): smaller is better.

    Args:
        x, y: `(n, H)`, of any length; row i of one is the positive of row i of the other.

    Example:
        >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])).item()
        2.0
    """
    return (_unit(x) - _unit(y)).square().sum(-1).mean()


def uniformity(x: torch.Tensor) -> torch.Tensor:
    """Log of the mean Gaussian potential over all distinct pairs (Wang & Isola 2020, eq. 2, t = 2): smaller is better.

    Args:
        x: `(n, H)`, n at least 2, of any length.

    Example:
        >>> uniformity(torch.tensor([[1.0, 0.0], [-5.0, 0.0]])).item()  # the squared distance of opposite poles is 4
        -8.0
    """
    return torch.pdist(_unit(x)).square().mul(-2).exp().mean().log()
