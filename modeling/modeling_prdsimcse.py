r"""PrdSimCSE: text prefixes that keep a sentence's meaning make its positive, ones that reverse it its hard negative.

Each sentence x is encoded three times in one forward pass: as it is (the anchor), behind filler words whose number
grows with its length (the positive: lengths no longer tell a pair), and behind a statement that what follows is
contradictory (the negative). The loss (section 2, eq. 2) is InfoNCE with the prefixed copies,

.. math:: \ell_i = -\log \frac{e^{\cos(z_i, z_i^+)/\tau}}
          {e^{\cos(z_i, z_i^+)/\tau} + \sum_n e^{\cos(z_i, z_n^-)/\tau}}

where the paper leaves open which negatives :math:`z_n^-` a batch gives: `objectives.prefix_contrastive` has the three
readings. Dropout differs between the copies as in SimCSE.

References:
    Wang, Lv 2024, "Prefix Data Augmentation for Contrastive Learning of Unsupervised Sentence Embedding", Applied
    Sciences. No code was released; what the paper leaves open is decided in `PrdSimCSEConfig` and said there.

Relations:
    SimCSE on texts of its own making: with `denominator="batch"` the loss is that of supervised SimCSE, without
    prefixes (`positive_prefix="none", negative_prefix="none"`) the method is unsupervised SimCSE.
"""

import torch

from .configuration_prdsimcse import PrdSimCSEConfig
from .distributed import gather_rows
from .modeling_contrastive import ForContrastiveLearning
from .modeling_sentence_encoder import SentenceEncoderModel
from .objectives import prefix_contrastive
from .text_prefixes import NEGATIVE_PREFIXES, positive_prefix

__all__ = ["NEGATIVE_PREFIXES", "PrdSimCSEForContrastiveLearning", "PrdSimCSEModel", "positive_prefix"]


class PrdSimCSEModel(SentenceEncoderModel):
    """The encoder a PrdSimCSE checkpoint serves; sentences are embedded without prefixes.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = PrdSimCSEModel(PrdSimCSEConfig(backbone_config=tiny)).eval()
        >>> model(input_ids=torch.tensor([[1, 2, 3]])).pooler_output.shape
        torch.Size([1, 8])
    """

    config_class = PrdSimCSEConfig


class PrdSimCSEForContrastiveLearning(ForContrastiveLearning):
    """PrdSimCSE in training: the prefixes are in the token ids (`PrdSimCSEConfig.text_prefixes`), the loss is here.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = PrdSimCSEForContrastiveLearning(PrdSimCSEConfig(backbone_config=tiny, denominator="own"))
        >>> ids = torch.randint(9, (4, 3, 6))  # 4 sentences: itself, its positive, its negative
        >>> model(input_ids=ids, attention_mask=torch.ones_like(ids)).embeddings.shape
        torch.Size([4, 3, 8])
    """

    config_class = PrdSimCSEConfig
    serving_class = PrdSimCSEModel
    seams = ("data", "objective")

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """`(B, 3, H)` to a scalar, or `(B, 2, H)` without negative copies."""
        if self.config.denominator == "batch":
            return super().contrastive_loss(embeddings, duplicates)
        everyone, _ = gather_rows(embeddings)
        anchors, positives, *negatives = everyone.unbind(1)
        return prefix_contrastive(
            anchors,
            positives,
            negatives[0] if negatives else None,
            temperature=self.config.temperature,
            denominator=self.config.denominator,
            duplicates=duplicates,
        )
