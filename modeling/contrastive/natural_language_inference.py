"""Train on labelled sentence pairs beside a contrastive loss: SBERT's classifier on [u; v; |u - v|].

References:
    Reimers, Gurevych 2019, "Sentence-BERT", section 3 (three classes). DiffAug (section 3.2) tunes its prefixes on two
    classes, entailed and contradicted; ConSERT (Yan et al. 2021, section 4.2) trains a classifier together with its
    contrastive loss, or in an earlier stage.
"""

import torch
import torch.nn.functional as F
from torch import nn

from ..objectives import at_least_float32
from .distributed import gather_rows

LABELS = ("contradiction", "entailment", "neutral")  # 0, 1 and, with three classes, 2


class NLIClassifier(nn.Module):
    """Linear on [u; v; |u - v|]. `(n, H), (n, H) -> (n, classes)`.

    Example:
        >>> NLIClassifier(4, 3)(torch.zeros(2, 4), torch.ones(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, hidden_size: int, classes: int):
        super().__init__()
        self.output = nn.Linear(3 * hidden_size, classes)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.output(torch.cat([first, second, (first - second).abs()], dim=-1))


def nli_loss(classifier: nn.Module, embeddings: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
    """Return the mean cross-entropy over the labelled pairs of all processes.

    Args:
        classifier: `(n, H), (n, H) -> (n, classes)`.
        embeddings: `(n, 2, H)`, premises and hypotheses with `labels`; or `(n, 3, H)`, triplets without. A triplet is
            two pairs: the premise with the entailed hypothesis (label 1) and with the contradicted one (label 0).
        labels: `(n,)`, indices of `LABELS`.

    Example:
        >>> loss = nli_loss(lambda u, v: torch.zeros(len(u), 2), torch.zeros(5, 3, 4), None)
        >>> round(loss.item(), 4)  # log 2
        0.6931
    """
    premises, *hypotheses = embeddings.unbind(1)
    if labels is None:
        entailed, contradicted = hypotheses
        logits = torch.cat([classifier(premises, entailed), classifier(premises, contradicted)])
        labels = torch.arange(1, -1, -1, device=logits.device).repeat_interleave(len(premises))
    else:
        logits = classifier(premises, *hypotheses)
    labelled = torch.cat([at_least_float32(logits), labels[:, None]], dim=1)  # small whole numbers stay exact
    everyone, _ = gather_rows(labelled)
    return F.cross_entropy(everyone[:, :-1], everyone[:, -1].long())
