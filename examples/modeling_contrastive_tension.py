r"""Contrastive Tension: two separately trained encoders agree on the same sentence. A new method in one file.

Both start from the same pre-trained encoder. One reads a sentence s, the other one the same sentence (a positive pair)
or another one (a negative pair). Each sentence is in one positive and K negative pairs. Binary cross-entropy on the
dot product of the two vectors learns to tell them apart (section 3):

.. math:: L = -\frac{1}{|P|} \sum_{(s, s') \in P} [s = s'] \log \sigma(f_1(s) \cdot f_2(s'))
          + [s \ne s'] \log \sigma(-f_1(s) \cdot f_2(s'))

There is no projection and no temperature, and pooling is the mean over tokens. The second encoder is served, the first
one is dropped.

To use it, copy this file into `modeling/` and add it to `METHODS` there:

    from .modeling_contrastive_tension import ContrastiveTensionConfig, ContrastiveTensionModel
    from .modeling_contrastive_tension import ContrastiveTensionForContrastiveLearning
    "contrastive_tension": (
        ContrastiveTensionConfig, ContrastiveTensionModel, ContrastiveTensionForContrastiveLearning
    ),

Then `--method contrastive_tension --optimizer rmsprop --learning_rate 1e-5 --batch_size 16` trains it from any recipe.
A line in `tests/methods.py` runs all tests of methods on it:

    "contrastive_tension": Tested(neutral=None, passes=(("BertModel", "parameters", 8),) * 2),

References:
    Carlsson, Gyllensten, Gogoulou, Ylipää Hellqvist, Sahlgren 2021, "Semantic Re-tuning with Contrastive Tension",
    ICLR. Differences from the paper:

    * The paper samples K negatives for each sentence from the corpus and encodes each of them. Here the negatives of a
      sentence are the next K in the batch, which is random too, so that each encoder encodes every sentence once. A
      batch of b sentences has b positive and bK negative pairs. The paper's 16 pairs are 2 positive and 14 negative.
    * The paper lowers the learning rate from 1e-5 to 2e-6 in steps. The zoo has no such schedule. The closest one is
      `lr_scheduler: linear`, which ends at 0.

Relations:
    It does not extend SimCSE: no setting makes the two the same.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel

from .configuration_sentence_encoder import SentenceEncoderConfig
from .distributed import gather_rows
from .modeling_contrastive import ForContrastiveLearning
from .modeling_sentence_encoder import SentenceEncoderModel
from .objectives import at_least_float32


class ContrastiveTensionConfig(SentenceEncoderConfig):
    """The configuration of Contrastive Tension, with the paper's pooling. `temperature` has no effect.

    Args:
        negatives: K, negative pairs for each positive pair; fewer if a batch has fewer other sentences.
    """

    model_type = "contrastive_tension"
    allowed = {"negatives": "[1, 1_000_000]"}

    def __init__(self, negatives: int = 7, pooling: str = "mean", projection: str = "none", **kwargs: Any):
        self.negatives = negatives
        super().__init__(pooling=pooling, projection=projection, **kwargs)

    def _check(self) -> None:
        super()._check()
        if self.denoise != "none":
            raise ValueError("denoise: contrastive_tension has two encoders with different biases; set denoise: none")

    @property
    def needs_whole_batch(self) -> str | None:
        return "Contrastive Tension needs the gradients of two encoders, which mini-batches do not compute"

    def view_columns(self, columns: int) -> list[int]:
        if columns > 2:
            raise ValueError(f"contrastive_tension needs one text column or two, not {columns}")
        return super().view_columns(columns)


class ContrastiveTensionModel(SentenceEncoderModel):
    """The encoder that a Contrastive Tension checkpoint serves: the second one."""

    config_class = ContrastiveTensionConfig
    training_heads = (*SentenceEncoderModel.training_heads, "first")


class ContrastiveTensionForContrastiveLearning(ForContrastiveLearning):
    """The training model of Contrastive Tension: one encoder reads the anchors, the other one the positives."""

    config_class = ContrastiveTensionConfig
    serving_class = ContrastiveTensionModel
    seams = ("views", "objective")

    def __init__(self, config: ContrastiveTensionConfig):
        super().__init__(config)
        self.first = AutoModel.from_config(config.backbone_config)
        self.first.pooler = None
        self.post_init()

    def encoders(self) -> list[nn.Module]:
        return [*super().encoders(), self.first]

    def recover_heads(self, lost: set[str]) -> set[str]:
        """Start the first encoder from the served one."""
        return super().recover_heads(lost) | ({"first"} & lost)

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        with self.model.read_with(self.first):
            anchors = super().pool_views(input_ids[:, :1], attention_mask[:, :1], rows)
        positives = super().pool_views(input_ids[:, 1:], attention_mask[:, 1:], rows)
        return torch.cat([anchors, positives], dim=1)

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the loss of embeddings `(B, 2, H)`, with the negatives of all processes."""
        everyone, _ = gather_rows(embeddings)
        anchors, positives = at_least_float32(everyone).unbind(1)
        rows = torch.arange(len(everyone), device=everyone.device)
        distance = torch.arange(min(self.config.negatives + 1, len(everyone)), device=everyone.device)
        partners = (rows[:, None] + distance) % len(everyone)  # (B, 1 + K): the sentence itself, then the next K
        with torch.autocast(anchors.device.type, enabled=False):
            scores = (anchors @ positives.T).gather(1, partners)  # (B, 1 + K)
        same = (distance == 0).to(scores.dtype).expand_as(scores)
        losses = F.binary_cross_entropy_with_logits(scores, same, reduction="none")
        if duplicates is None:
            return losses.mean()
        return losses[~duplicates.gather(1, partners)].mean()
