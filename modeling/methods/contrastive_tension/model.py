r"""Contrastive Tension: two separately trained encoders agree on the same sentence.

Both start from the same pre-trained encoder. One reads a sentence s, the other one the same sentence (a positive pair)
or another one (a negative pair). Each sentence is in one positive and K negative pairs. Binary cross-entropy on the
dot product of the two vectors learns to tell them apart (section 3):

.. math:: L = -\frac{1}{|P|} \sum_{(s, s') \in P} [s = s'] \log \sigma(f_1(s) \cdot f_2(s'))
          + [s \ne s'] \log \sigma(-f_1(s) \cdot f_2(s'))

There is no projection and no temperature, and pooling is the mean over tokens. The encoder with the better dev score
is served, and without dev the second one.

References:
    Carlsson, Gyllensten, Gogoulou, Ylipää Hellqvist, Sahlgren 2021, "Semantic Re-tuning with Contrastive Tension",
    ICLR. The paper pairs a sentence with K others. The release pairs two others: its updates of 16 pairs have
    2 positive and 14 negative ones. It trains without dropout. `negative_pairs` offers both. Differences from both:

    * They draw the sentences of each update from the corpus, with replacement. Here they are those of a batch.
    * Each encoder encodes all sentences of the batch. That costs twice the time that the pairs of the release need.

Relations:
    It does not extend SimCSE: no setting makes the two the same.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from ...contrastive.distributed import gather_rows, sum_over_processes
from ...contrastive.sentence_encoder import SentenceEncoderModel, new_encoder
from ...contrastive.training_model import ForContrastiveLearning
from ...objectives import at_least_float32
from .configuration import ContrastiveTensionConfig


def own_pairs(sentences: int, negatives: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pair each sentence with itself and with the next `negatives` ones, round the batch.

    Returns:
        The sentence that each encoder reads in each pair, `(pairs,)` each.

    Example:
        >>> torch.stack(own_pairs(3, 1)).tolist()
        [[0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 0]]
    """
    rows = torch.arange(sentences)
    distance = torch.arange(min(negatives + 1, sentences))
    right = (rows[:, None] + distance) % sentences
    return rows.repeat_interleave(len(distance)), right.flatten()


def other_pairs(sentences: int, negatives: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pair the first sentences with themselves, and the others, two by two, with each other.

    Of 1 + 2 `negatives` sentences, one is paired with itself. If the number is odd, the last of the others is in no
    pair.

    Example:
        >>> torch.stack(other_pairs(6, 2)).tolist()  # one positive pair, two negative ones
        [[0, 1, 2], [0, 3, 4]]
    """
    positive = max(1, round(sentences / (1 + 2 * negatives)))
    half = (sentences - positive) // 2
    rows = torch.arange(sentences)
    left = rows[: positive + half]
    return left, torch.cat([rows[:positive], rows[positive + half : positive + 2 * half]])


def pair_loss(scores: torch.Tensor, same: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mean cross-entropy of the pairs of all processes, a scalar.

    Args:
        scores: `(pairs,)`, the dot product of each pair of this process.
        same: `(pairs,)` of bool, whether both encoders have read the same sentence.
        kept: `(pairs,)` of bool, false for pairs that do not count; all count by default.

    Example:
        >>> scores, same = torch.tensor([0.0, 9.0]), torch.tensor([True, False])
        >>> round(pair_loss(scores, same, torch.tensor([True, False])).item(), 4)
        0.6931
    """
    losses = F.binary_cross_entropy_with_logits(scores, same.to(scores.dtype), reduction="none")
    counted = torch.ones_like(losses) if kept is None else kept.to(losses.dtype)
    return sum_over_processes((losses * counted).sum() / sum_over_processes(counted.sum()))


class ContrastiveTensionModel(SentenceEncoderModel):
    """The encoder that a Contrastive Tension checkpoint serves: the second one, or the first if dev chose it."""

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
        self.first = new_encoder(config.backbone_config)
        self.post_init()

    def encoders(self) -> list[PreTrainedModel]:
        return [*super().encoders(), self.first]

    def served_encoders(self) -> list[nn.Module]:
        """Return both encoders, the second one first; with an average of weights only that, which is the second's."""
        return [*super().served_encoders(), *([] if self.config.ema_decay > 0 else [self.first])]

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        with self.model.read_with(self.first):
            anchors = super().pool_views(input_ids[:, :1], attention_mask[:, :1], rows)
        positives = super().pool_views(input_ids[:, 1:], attention_mask[:, 1:], rows)
        return torch.cat([anchors, positives], dim=1)

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the loss of embeddings `(B, 2, H)`, with the negatives of all processes."""
        everyone, mine = gather_rows(embeddings)
        anchors, positives = at_least_float32(everyone).unbind(1)
        choose = other_pairs if self.config.negative_pairs == "others" else own_pairs
        left, right = choose(len(everyone), self.config.negatives)
        # A pair is of the process that has its first sentence.
        begin, end = torch.searchsorted(left, torch.tensor([mine.start, mine.stop])).tolist()
        left, right = (pairs[begin:end].to(everyone.device, non_blocking=True) for pairs in (left, right))
        kept = None if duplicates is None else ~duplicates[left - mine.start, right]
        if kept is not None and kept.device.type == "cpu":  # elsewhere the number of pairs would have to be waited for
            left, right, kept = left[kept], right[kept], None
        with torch.autocast(anchors.device.type, enabled=False):
            scores = (anchors[left] * positives[right]).sum(1)
        return pair_loss(scores, left == right, kept)
