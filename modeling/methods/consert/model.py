r"""ConSERT: two views of a sentence by changes of its order or of its token embeddings.

The two copies of sentence i have vectors :math:`r_i` and :math:`r_j`. The loss is NT-Xent over the 2N vectors of a
batch (section 3.1, eq. 1),

.. math:: \mathcal{L}_{i,j} = -\log \frac{e^{\cos(r_i, r_j)/\tau}}{\sum_{k \ne i} e^{\cos(r_i, r_k)/\tau}}

References:
    Yan et al. 2021, "ConSERT: A Contrastive Framework for Self-Supervised Sentence Representation Transfer", ACL.
    The release trains without dropout where it changes views itself (the recipe key `dropout`). It shuffles the
    positions of all tokens. A pooling over all tokens does not depend on their order, so shuffling the tokens with
    [CLS] and [SEP] is the same (`shuffle_special_tokens`).

Relations:
    With `first_view="none", second_view="none", in_view_negatives=False` it is unsupervised SimCSE.
"""

import torch

from ...contrastive.perturbations import perturbed
from ...contrastive.sentence_encoder import SentenceEncoderModel
from ...contrastive.training_model import ForContrastiveLearning
from ...objectives import self_guided
from .configuration import ConSERTConfig


def token_cutoff(attention_mask: torch.Tensor, hidden_size: int, rate: float) -> torch.Tensor:
    """Return a mask `(B, T, H)` of 0 and 1 that leaves out ⌊rate · n⌋ of the n tokens of each row (section 3.2).

    Example:
        >>> token_cutoff(torch.tensor([[1, 1, 1, 1, 0]]), 2, 0.5).sum()
        tensor(6.)
    """
    draws = torch.rand(attention_mask.shape, device=attention_mask.device).masked_fill(attention_mask == 0, 2)
    least = (attention_mask.sum(1, keepdim=True) * rate).floor()
    kept = draws.argsort(1).argsort(1) >= least  # the rank of each token in a random order
    return kept.float().unsqueeze(-1).expand(-1, -1, hidden_size)


def feature_cutoff(attention_mask: torch.Tensor, hidden_size: int, rate: float) -> torch.Tensor:
    """Return a mask `(B, T, H)` of 0 and 1 that leaves out ⌊rate · H⌋ features of each row (section 3.2).

    Example:
        >>> feature_cutoff(torch.ones(1, 3), 8, 0.25).sum()
        tensor(18.)
    """
    draws = torch.rand(len(attention_mask), hidden_size, device=attention_mask.device)
    kept = draws.argsort(1).argsort(1) >= int(hidden_size * rate)
    return kept.float().unsqueeze(1).expand(-1, attention_mask.shape[1], -1)


class ConSERTModel(SentenceEncoderModel):
    """The encoder that a ConSERT checkpoint serves. Nothing is cut off or shuffled."""

    config_class = ConSERTConfig

    @property
    def pooling(self) -> str:
        return (self.training and self.config.training_pooling) or super().pooling


class ConSERTForContrastiveLearning(ForContrastiveLearning):
    """The training model of ConSERT: its views and its loss. `ConSERTConfig.edit_sentence` shuffles.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = ConSERTForContrastiveLearning(ConSERTConfig(backbone_config=tiny))
        >>> ids = torch.randint(9, (4, 2, 6))
        >>> model(input_ids=ids, attention_mask=torch.ones_like(ids)).embeddings.shape
        torch.Size([4, 2, 8])
    """

    config_class = ConSERTConfig
    serving_class = ConSERTModel
    seams = ("data", "views", "objective")

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        """Encode views `(B, 2, T)` with the cut-offs of the configuration, after the embedding layer."""
        if not self.training or not self.config.cuts_off:
            return super().pool_views(input_ids, attention_mask, rows)
        cutoffs = {"token_cutoff": token_cutoff, "feature_cutoff": feature_cutoff}
        size, masks = self.config.hidden_size, []
        for view, kind in enumerate(self.config.views):
            mask = attention_mask[:, view]
            cut = cutoffs[kind](mask, size, self.config.cutoff_rate) if kind in cutoffs else mask.new_ones(1, 1, 1)
            masks.append(cut.expand(*mask.shape, size))
        kept = torch.stack(masks, dim=1).flatten(0, 1)  # (B · 2, T, H)
        with perturbed(self.model.backbone, [lambda hidden, packing: hidden * kept.to(hidden.dtype)]):
            return super().pool_views(input_ids, attention_mask, rows)

    def objective(self, embeddings: torch.Tensor, mine: slice, duplicates: torch.Tensor | None) -> torch.Tensor:
        if not self.config.in_view_negatives:
            return super().objective(embeddings, mine, duplicates)
        first, second = embeddings.unbind(1)
        return self_guided(
            first,
            second[:, None],
            temperature=self.config.temperature,
            variant="base",
            duplicates=duplicates,
            rows=mine,
        )
