"""Learn rankings: the model ranks the sentences of a batch by similarity, as its teachers do and alike in both views.

References:
    Liu et al. 2023, "RankCSE: Unsupervised Sentence Representations Learning via Learning to Rank", sections 4.2
    (ranking consistency) and 4.3 (rank distillation). The losses of distillation are ListNet (Cao et al. 2007) and
    ListMLE (Xia et al. 2008). In them a sentence does not rank itself here. The community's code keeps the diagonal in
    ListMLE, where the sentence comes first in every ranking.
"""

import math

import torch
import torch.nn.functional as F

from ..objectives import EVERY, at_least_float32, cosine_logits, mean_or_share, row_numbers, select_rows


def without_itself(matrix: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Drop from each row of `(b, B)` the column of its own number: `(b, B - 1)`."""
    others = torch.arange(matrix.shape[1] - 1, device=matrix.device)
    return matrix.gather(1, others + (others >= numbers[:, None]))


def list_net(scores: torch.Tensor, teacher_scores: torch.Tensor, total: int | None = None) -> torch.Tensor:
    r"""ListNet: the cross-entropy between the teacher's and the student's softmax over the other sentences.

    .. math:: \ell = -\frac{1}{n} \sum_i \sum_j \mathrm{softmax}(t_i)_j \log \mathrm{softmax}(s_i)_j

    Args:
        scores: `(n, m)`, similarities of the student, divided by a temperature.
        teacher_scores: `(n, m)`, those of the teacher.
        total: divides the sum of the losses, n by default.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0]])
        >>> bool(list_net(scores, scores) < list_net(-scores, scores))
        True
    """
    return -mean_or_share((teacher_scores.softmax(1) * scores.log_softmax(1)).sum(1), total or len(scores))


def list_mle(scores: torch.Tensor, teacher_scores: torch.Tensor, total: int | None = None) -> torch.Tensor:
    r"""ListMLE: the negative log-likelihood of the teacher's ranking :math:`\pi` under the student's scores.

    .. math:: \ell = \frac{1}{n} \sum_i \sum_k \Big[ \log \sum_{l \ge k} e^{s_{i \pi(l)}} - s_{i \pi(k)} \Big]

    Only the order of the teacher's scores counts. The arguments are those of `list_net`.

    Example:
        >>> list_mle(torch.zeros(1, 3), torch.tensor([[3.0, 2.0, 1.0]])).exp().round().item()  # one of 3! rankings
        6.0
    """
    ranked = scores.gather(1, teacher_scores.argsort(dim=1, descending=True, stable=True))
    remaining = ranked.flip(1).logcumsumexp(1).flip(1)  # over each rank and all lower ones
    return mean_or_share((remaining - ranked).sum(1), total or len(scores))


def rank_distillation(
    anchors: torch.Tensor,
    others: torch.Tensor,
    teachers: torch.Tensor,
    *,
    loss: str,
    temperature: float,
    teacher_temperature: float,
    rows: slice = EVERY,
) -> torch.Tensor:
    """Compare how each sentence ranks the other sentences of a batch with the ranking of the teachers.

    Args:
        anchors, others: `(B, H)`, two views of each sentence. Each anchor ranks the second view of every other
            sentence.
        teachers: `(B, K)`, the vectors of the teachers. Their cosines are the teachers' similarities.
        loss: `listnet` or `listmle`.
        temperature: of the student's similarities.
        teacher_temperature: of the teachers' similarities; ListMLE does not depend on it.
        rows: the sentences whose losses are computed; all by default.

    Returns:
        A scalar of at least float32, with `rows` their share in it; 0 for a batch of one sentence.
    """
    if len(anchors) < 2:
        return (at_least_float32(anchors) * 0).sum()
    numbers = row_numbers(rows, anchors)
    scores = without_itself(cosine_logits(select_rows(anchors, rows), others, temperature), numbers)
    teacher_scores = without_itself(cosine_logits(select_rows(teachers, rows), teachers, teacher_temperature), numbers)
    return (list_net if loss == "listnet" else list_mle)(scores, teacher_scores.to(scores.dtype), len(anchors))


def rank_consistency(
    anchors: torch.Tensor, others: torch.Tensor, *, temperature: float, rows: slice = EVERY
) -> torch.Tensor:
    r"""Compare how the two views of each sentence rank the sentences of a batch, itself among them.

    .. math:: \ell = \frac{1}{B} \sum_i \mathrm{JS}(P_i \,\|\, Q_i), \quad
              P_i = \mathrm{softmax}_j(\cos(x_i, x'_j) / \tau), \quad Q_i = \mathrm{softmax}_j(\cos(x'_i, x_j) / \tau)

    JS is the Jensen-Shannon divergence, with natural logarithms.

    Args:
        anchors, others: `(B, H)`, the two views x and x' of each sentence.
        temperature: τ, that of the contrastive loss.
        rows: the sentences whose divergences are computed; all by default.

    Returns:
        A scalar of at least float32, from 0 for equal views to log 2; with `rows` their share in it.

    Example:
        >>> views = torch.eye(2)
        >>> rank_consistency(views, views, temperature=1.0).item()
        0.0
    """
    own = select_rows(anchors, rows)
    scores = cosine_logits(own, others, temperature)
    reversed_scores = scores.T if own is anchors else cosine_logits(others[rows], anchors, temperature)
    first, second = scores.log_softmax(1), reversed_scores.log_softmax(1)
    mean = torch.logaddexp(first, second) - math.log(2)
    sums = [F.kl_div(mean, view, reduction="sum", log_target=True) for view in (first, second)]
    return (sums[0] / len(anchors) + sums[1] / len(anchors)) / 2
