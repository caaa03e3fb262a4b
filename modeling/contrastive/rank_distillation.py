"""Distil rankings: the model learns to rank the sentences of a batch by similarity as its teachers do.

References:
    Liu et al. 2023, "RankCSE: Unsupervised Sentence Representations Learning via Learning to Rank", section 4.3. Its
    losses are ListNet (Cao et al. 2007) and ListMLE (Xia et al. 2008). Two differences:

    * RankCSE also has a ranking-consistency loss, the Jensen-Shannon divergence of the rankings that two
      views of a sentence make. The zoo does not have it, so this is no complete RankCSE.
    * A sentence does not rank itself here. The community's code keeps the diagonal in ListMLE, where the sentence
      comes first in every ranking.
"""

import torch

from ..objectives import at_least_float32, cosine_logits


def without_diagonal(matrix: torch.Tensor) -> torch.Tensor:
    """Drop the diagonal of a square matrix: `(B, B)` to `(B, B - 1)`.

    Example:
        >>> without_diagonal(torch.arange(9).view(3, 3)).tolist()
        [[1, 2], [3, 5], [6, 7]]
    """
    size = len(matrix)
    return matrix.flatten()[1:].view(size - 1, size + 1)[:, :-1].reshape(size, size - 1)


def list_net(scores: torch.Tensor, teacher_scores: torch.Tensor) -> torch.Tensor:
    r"""ListNet: the cross-entropy between the teacher's and the student's softmax over the other sentences.

    .. math:: \ell = -\frac{1}{n} \sum_i \sum_j \mathrm{softmax}(t_i)_j \log \mathrm{softmax}(s_i)_j

    Args:
        scores: `(n, m)`, similarities of the student, divided by a temperature.
        teacher_scores: `(n, m)`, those of the teacher.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0]])
        >>> bool(list_net(scores, scores) < list_net(-scores, scores))
        True
    """
    return -(teacher_scores.softmax(1) * scores.log_softmax(1)).sum(1).mean()


def list_mle(scores: torch.Tensor, teacher_scores: torch.Tensor) -> torch.Tensor:
    r"""ListMLE: the negative log-likelihood of the teacher's ranking :math:`\pi` under the student's scores.

    .. math:: \ell = \frac{1}{n} \sum_i \sum_k \Big[ \log \sum_{l \ge k} e^{s_{i \pi(l)}} - s_{i \pi(k)} \Big]

    Only the order of the teacher's scores counts.

    Args:
        scores, teacher_scores: as in `list_net`.

    Example:
        >>> list_mle(torch.zeros(1, 3), torch.tensor([[3.0, 2.0, 1.0]])).exp().round().item()  # one of 3! rankings
        6.0
    """
    ranked = scores.gather(1, teacher_scores.argsort(dim=1, descending=True, stable=True))
    remaining = ranked.flip(1).logcumsumexp(1).flip(1)  # over each rank and all lower ones
    return (remaining - ranked).sum(1).mean()


def rank_distillation(
    anchors: torch.Tensor,
    others: torch.Tensor,
    teachers: torch.Tensor,
    *,
    loss: str,
    temperature: float,
    teacher_temperature: float,
) -> torch.Tensor:
    """Compare how each sentence ranks the other sentences of a batch with the ranking of the teachers.

    Args:
        anchors, others: `(B, H)`, two views of each sentence. Each anchor ranks the second view of every other
            sentence.
        teachers: `(B, K)`, the vectors of the teachers. Their cosines are the teachers' similarities.
        loss: `listnet` or `listmle`.
        temperature: of the student's similarities.
        teacher_temperature: of the teachers' similarities; ListMLE does not depend on it.

    Returns:
        A scalar of at least float32; 0 for a batch of one sentence.
    """
    if len(anchors) < 2:
        return (at_least_float32(anchors) * 0).sum()
    scores = without_diagonal(cosine_logits(anchors, others, temperature))
    teacher_scores = without_diagonal(cosine_logits(teachers, teachers, teacher_temperature)).to(scores.dtype)
    return (list_net if loss == "listnet" else list_mle)(scores, teacher_scores)
