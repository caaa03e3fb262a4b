r"""Contrastive Tension: two encoders, trained apart, agree on the same sentence. A method of one's own in one file.

Both start as the same pre-trained encoder. One reads a sentence s, the other the same sentence (a positive pair) or
another one (a negative pair); each sentence is in one positive and K negative pairs. The dot product of the two
vectors tells which it is, by binary cross-entropy (section 3):

.. math:: L = -\frac{1}{|P|} \sum_{(s, s') \in P} [s = s'] \log \sigma(f_1(s) \cdot f_2(s'))
          + [s \ne s'] \log \sigma(-f_1(s) \cdot f_2(s'))

No projection, the mean over tokens, no temperature. The second encoder is served, the first is dropped.

To use it, copy this file into `modeling/` and name it in `METHODS` there:

    from .modeling_contrastive_tension import ContrastiveTensionConfig, ContrastiveTensionModel
    from .modeling_contrastive_tension import ContrastiveTensionForContrastiveLearning
    "contrastive_tension": (
        ContrastiveTensionConfig, ContrastiveTensionModel, ContrastiveTensionForContrastiveLearning
    ),

Then `--method contrastive_tension --optimizer rmsprop --learning_rate 1e-5 --batch_size 16` trains it from any recipe.
All tests of methods take it with a line in `tests/methods.py`:

    "contrastive_tension": Tested(neutral=None, passes=(("BertModel", "parameters", 8),) * 2),

References:
    Carlsson, Gyllensten, Gogoulou, Ylipää Hellqvist, Sahlgren 2021, "Semantic Re-tuning with Contrastive Tension",
    ICLR. Where this differs:

    * The paper draws K negatives for each sentence from the corpus and encodes each of them. Here the negatives of a
      sentence are the K that follow it in the batch, which is random too, so that every sentence is encoded once by
      each encoder. A batch of b sentences has b positive and bK negative pairs; the paper's 16 pairs are 2 and 14.
    * The paper lowers the learning rate from 1e-5 to 2e-6 in steps. The zoo has no such schedule: the nearest one is
      `lr_scheduler: linear`, which ends at 0.

Relations:
    It is no change of SimCSE: there is no setting at which the two are the same.
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
    """A sentence encoder's settings, with the paper's pooling, and one more. `temperature` is without effect.

    Args:
        negatives: K, negative pairs for each positive one; fewer in a batch of fewer other sentences.
    """

    model_type = "contrastive_tension"
    allowed = {"negatives": "[1, 1_000_000]"}

    def __init__(self, negatives: int = 7, pooling: str = "mean", projection: str = "none", **kwargs: Any):
        self.negatives = negatives
        super().__init__(pooling=pooling, projection=projection, **kwargs)

    def _check(self) -> None:
        super()._check()
        if self.denoise != "none":
            raise ValueError("denoise: contrastive_tension has two encoders with a bias each, give denoise: none")

    @property
    def needs_whole_batch(self) -> str | None:
        return "Contrastive Tension's two encoders read a batch in turns"

    def view_columns(self, columns: int) -> list[int]:
        if columns > 2:
            raise ValueError(f"contrastive_tension reads a sentence, or a pair of them, not {columns} columns")
        return super().view_columns(columns)


class ContrastiveTensionModel(SentenceEncoderModel):
    """The encoder a Contrastive Tension checkpoint serves, the second one."""

    config_class = ContrastiveTensionConfig
    training_heads = (*SentenceEncoderModel.training_heads, "first")


class ContrastiveTensionForContrastiveLearning(ForContrastiveLearning):
    """Contrastive Tension in training: the first encoder reads the anchors, the second the positives."""

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
        """The first encoder starts anew from the one that was served."""
        return super().recover_heads(lost) | ({"first"} & lost)

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        with self.model.read_with(self.first):
            anchors = super().pool_views(input_ids[:, :1], attention_mask[:, :1], rows)
        positives = super().pool_views(input_ids[:, 1:], attention_mask[:, 1:], rows)
        return torch.cat([anchors, positives], dim=1)

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """`(B, 2, H)` to a scalar; the negatives are those of all processes."""
        everyone, _ = gather_rows(embeddings)
        anchors, positives = at_least_float32(everyone).unbind(1)
        own = torch.arange(len(everyone), device=everyone.device)
        distance = torch.arange(min(self.config.negatives + 1, len(everyone)), device=everyone.device)
        partners = (own[:, None] + distance) % len(everyone)  # (B, 1 + K): each sentence itself, then those after it
        with torch.autocast(anchors.device.type, enabled=False):
            scores = (anchors @ positives.T).gather(1, partners)  # (B, 1 + K)
        same = (distance == 0).to(scores.dtype).expand_as(scores)
        losses = F.binary_cross_entropy_with_logits(scores, same, reduction="none")
        if duplicates is None:
            return losses.mean()
        return losses[~duplicates.gather(1, partners)].mean()
