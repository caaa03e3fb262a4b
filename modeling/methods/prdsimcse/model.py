r"""PrdSimCSE: text prefixes make a positive (same meaning) and a hard negative (opposite meaning) of each sentence.

Each sentence x is encoded three times in one forward pass: without a prefix (the anchor), after filler words whose
number grows with its length (the positive, so that length does not identify pairs), and after a statement that the
following is contradictory (the negative). The loss (section 2, eq. 2) is InfoNCE with the prefixed copies,

.. math:: \ell_i = -\log \frac{e^{\cos(z_i, z_i^+)/\tau}}
          {e^{\cos(z_i, z_i^+)/\tau} + \sum_n e^{\cos(z_i, z_n^-)/\tau}}

The paper does not say which negatives :math:`z_n^-` of a batch are used: `objectives.prefix_contrastive` has three
readings. Dropout differs between the copies, as in SimCSE.

References:
    Wang, Lv 2024, "Prefix Data Augmentation for Contrastive Learning of Unsupervised Sentence Embedding", Applied
    Sciences. No code was released. `PrdSimCSEConfig` documents the choices that the paper leaves open.

Relations:
    With `denominator="batch"` the loss is that of supervised SimCSE. Without prefixes (`positive_prefix="none",
    negative_prefix="none"`) the method is unsupervised SimCSE.
"""

import torch

from ...contrastive.sentence_encoder import SentenceEncoderModel
from ...contrastive.training_model import ForContrastiveLearning
from ...objectives import prefix_contrastive
from .configuration import PrdSimCSEConfig


class PrdSimCSEModel(SentenceEncoderModel):
    """The encoder that a PrdSimCSE checkpoint serves. Sentences are embedded without prefixes."""

    config_class = PrdSimCSEConfig


class PrdSimCSEForContrastiveLearning(ForContrastiveLearning):
    """The training model of PrdSimCSE: its loss. The prefixes are in the token ids (`PrdSimCSEConfig.text_prefixes`).

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = PrdSimCSEForContrastiveLearning(PrdSimCSEConfig(backbone_config=tiny, denominator="own"))
        >>> ids = torch.randint(9, (4, 3, 6))  # 4 sentences, each with its positive and negative
        >>> model(input_ids=ids, attention_mask=torch.ones_like(ids)).embeddings.shape
        torch.Size([4, 3, 8])
    """

    config_class = PrdSimCSEConfig
    serving_class = PrdSimCSEModel
    seams = ("data", "objective")

    def objective(self, embeddings: torch.Tensor, mine: slice, duplicates: torch.Tensor | None) -> torch.Tensor:
        if self.config.denominator == "batch":
            return super().objective(embeddings, mine, duplicates)
        anchors, positives, *negatives = embeddings.unbind(1)  # without negative copies there are two views
        return prefix_contrastive(
            anchors,
            positives,
            negatives[0] if negatives else None,
            temperature=self.config.temperature,
            denominator=self.config.denominator,
            duplicates=duplicates,
            rows=mine,
        )
