r"""Contrastive Tension: two separately trained encoders agree on the same sentence.

Both start from the same pre-trained encoder. One reads a sentence s, the other one the same sentence (a positive pair)
or another one (a negative pair). Each sentence is in one positive and K negative pairs. Binary cross-entropy on the
dot product of the two vectors learns to tell them apart (section 3):

.. math:: L = -\frac{1}{|P|} \sum_{(s, s') \in P} [s = s'] \log \sigma(f_1(s) \cdot f_2(s'))
          + [s \ne s'] \log \sigma(-f_1(s) \cdot f_2(s'))

There is no projection and no temperature, and pooling is the mean over tokens. The second encoder is served, the first
one is dropped.

References:
    Carlsson, Gyllensten, Gogoulou, Ylipää Hellqvist, Sahlgren 2021, "Semantic Re-tuning with Contrastive Tension",
    ICLR. Differences from the paper:

    * The paper samples K negatives for each sentence from the corpus and encodes each of them. Here the negatives of a
      sentence are the next K in the batch, which is random too, so that each encoder encodes every sentence once. A
      batch of b sentences has b positive and bK negative pairs. The paper's 16 pairs are 2 positive and 14 negative.
    * The learning rate is lowered from 1e-5 to 2e-6, by 2e-6 after every 500 updates. The zoo has no such schedule.
      The closest one is `lr_scheduler: linear`, which ends at 0.
    * The release keeps the encoder that is better on dev. Here it is always the second one.

Relations:
    It does not extend SimCSE: no setting makes the two the same.
"""

import torch
import torch.nn.functional as F
from transformers import AutoModel, PreTrainedModel

from .configuration_contrastive_tension import ContrastiveTensionConfig
from .distributed import gather_rows
from .modeling_contrastive import ForContrastiveLearning
from .modeling_sentence_encoder import SentenceEncoderModel
from .objectives import at_least_float32


class ContrastiveTensionModel(SentenceEncoderModel):
    """The encoder that a Contrastive Tension checkpoint serves: the second one.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = ContrastiveTensionModel(ContrastiveTensionConfig(backbone_config=tiny)).eval()
        >>> model(input_ids=torch.tensor([[1, 2, 3]])).pooler_output.shape
        torch.Size([1, 8])
    """

    config_class = ContrastiveTensionConfig
    training_heads = (*SentenceEncoderModel.training_heads, "first")


class ContrastiveTensionForContrastiveLearning(ForContrastiveLearning):
    """The training model of Contrastive Tension: one encoder reads the anchors, the other one the positives.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = ContrastiveTensionForContrastiveLearning(ContrastiveTensionConfig(backbone_config=tiny))
        >>> ids = torch.randint(9, (4, 2, 6))
        >>> model(input_ids=ids, attention_mask=torch.ones_like(ids)).embeddings.shape
        torch.Size([4, 2, 8])
    """

    config_class = ContrastiveTensionConfig
    serving_class = ContrastiveTensionModel
    seams = ("views", "objective")

    def __init__(self, config: ContrastiveTensionConfig):
        super().__init__(config)
        self.first = AutoModel.from_config(config.backbone_config)
        self.first.pooler = None
        self.post_init()

    def encoders(self) -> list[PreTrainedModel]:
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
