r"""ESimCSE: repeated words in the positive, and negatives from earlier batches. A method of one's own in one file.

A sentence of N word pieces becomes its positive by repeating some of them, drawn anew for every batch, so that the two
no longer have the same length (section 3.1):

.. math:: \text{dup\_len} \sim U\{0, \dots, \max(2, \lfloor \text{dup\_rate} \cdot N \rfloor)\}

A momentum encoder, the average of the encoder's weights over the updates, reads the sentences too. Its vectors
:math:`h_m^+` stay in a queue and are negatives of the batches that follow (section 3.2):

.. math:: \theta_m \leftarrow \lambda \theta_m + (1 - \lambda) \theta_e, \qquad
          \ell_i = -\log \frac{e^{\cos(h_i, h_i^+)/\tau}}
          {\sum_j e^{\cos(h_i, h_j^+)/\tau} + \sum_m e^{\cos(h_i, h_m^+)/\tau}}

To use it, copy this file into `modeling/` and name it in `METHODS` there:

    from .modeling_esimcse import ESimCSEConfig, ESimCSEForContrastiveLearning, ESimCSEModel
    "esimcse": (ESimCSEConfig, ESimCSEModel, ESimCSEForContrastiveLearning),

Then `--method esimcse` trains it from any recipe, alone or as `esimcse+l2pcsr` or `esimcse+diffaug`. All tests
of methods take it with an entry in `tests/methods.py`:

    "esimcse": Tested(
        {"batch_size": 4},
        neutral={"repetition_rate": 0.0, "queue_factor": 0.0},
        passes=(PASS, ("BertModel", "nothing", 8)),
        combinations=("esimcse+l2pcsr", "esimcse+diffaug"),
    ),

References:
    Wu, Gao, Zang, Han, Wang, Hu 2022, "ESimCSE: Enhanced Sample Building Method for Contrastive Learning of
    Unsupervised Sentence Embedding", COLING. Decided here: the momentum encoder reads the anchors, not their
    positives, without dropout; it starts as the encoder is at the beginning of a stage; the queue starts empty, and a
    batch enters it after its own loss.

Relations:
    With `repetition_rate` 0 and `queue_factor` 0 it is SimCSE. The queue is MoCo's (He et al. 2020). In a combination
    the momentum encoder averages the backbone and the projection; prefixes are those of the moment, and nothing
    weakens what it reads.
"""

from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel

from .configuration_sentence_encoder import SentenceEncoderConfig
from .distributed import gather_rows
from .modeling_contrastive import ContrastiveLearningOutput, ForContrastiveLearning
from .modeling_sentence_encoder import SentenceEncoderModel
from .objectives import cosine_logits, without
from .pooling import build_projection


class ESimCSEConfig(SentenceEncoderConfig):
    """SimCSE's settings and three more.

    Args:
        repetition_rate: dup_rate, the largest share of a long sentence's word pieces that is repeated; 0 for none.
        momentum: λ of the momentum encoder.
        queue_factor: vectors in the queue, as a multiple of the batch size; 0 for no queue.
    """

    model_type = "esimcse"
    allowed = {"repetition_rate": "[0, 1]", "momentum": "[0, 1]", "queue_factor": "[0, 1_000]"}

    def __init__(
        self, repetition_rate: float = 0.32, momentum: float = 0.995, queue_factor: float = 2.5, **kwargs: Any
    ):
        self.repetition_rate = repetition_rate
        self.momentum = momentum
        self.queue_factor = queue_factor
        super().__init__(**kwargs)

    @property
    def queue_size(self) -> int:
        """Vectors in the queue; none where the batch size is not known."""
        return round(self.queue_factor * (self.batch_size or 0))

    def most_added_pieces(self, length: int) -> int:
        return max(2, int(self.repetition_rate * length)) if self.repetition_rate else 0

    def edit_sentence(self, views: list[list[int]], draw: Random) -> list[list[int]]:
        """The anchor as it is, and its positive with some pieces repeated."""
        anchor, positive = views
        most = min(len(positive), self.most_added_pieces(len(positive)))
        repeated = set(draw.sample(range(len(positive)), draw.randint(0, most)))
        return [anchor, [piece for place, one in enumerate(positive) for piece in [one] * (1 + (place in repeated))]]

    def view_columns(self, columns: int) -> list[int]:
        if columns > 2:
            raise ValueError(f"esimcse reads a sentence, or an anchor and its positive, not {columns} columns")
        return super().view_columns(columns)


class ESimCSEModel(SentenceEncoderModel):
    """The encoder an ESimCSE checkpoint serves."""

    config_class = ESimCSEConfig
    training_heads = (*SentenceEncoderModel.training_heads, "momentum_encoder", "momentum_projection", "queue")


class ESimCSEForContrastiveLearning(ForContrastiveLearning):
    """ESimCSE in training: SimCSE with edited texts, a momentum encoder and a queue, if its size is not 0."""

    config_class = ESimCSEConfig
    serving_class = ESimCSEModel
    seams = ("data", "objective")

    def __init__(self, config: ESimCSEConfig):
        super().__init__(config)
        if config.queue_size:
            self.momentum_encoder = AutoModel.from_config(config.backbone_config)
            self.momentum_encoder.pooler = None
            self.momentum_projection = build_projection(config, at_test=config.projection_at_test)
            self.register_buffer("queue", torch.zeros(config.queue_size, self.projected_size))
        self.post_init()
        self.train()

    def averaged(self) -> list[tuple[nn.Module, nn.Module]]:
        """The modules that are averages of others, with those others."""
        projection = self.model.projection if self.config.projection_at_test else self.projection
        return [(self.momentum_encoder, self.model.backbone), (self.momentum_projection, projection)]

    def train(self, mode: bool = True) -> "ESimCSEForContrastiveLearning":
        super().train(mode)
        if self.config.queue_size:
            for average, _ in self.averaged():
                average.requires_grad_(False).eval()
        return self

    def recover_heads(self, lost: set[str]) -> set[str]:
        """A serving checkpoint has no average and no queue: `begin_stage` makes both."""
        if "queue" in lost:
            self.queue.zero_()
        return super().recover_heads(lost) | ({"momentum_encoder", "momentum_projection", "queue"} & lost)

    def begin_stage(self, name: str) -> None:
        super().begin_stage(name)
        if self.config.queue_size:
            self.queue.zero_()
            for average, module in self.averaged():
                average.load_state_dict(module.state_dict())

    def after_update(self) -> None:
        super().after_update()
        if self.config.queue_size:
            for average, module in self.averaged():
                for mean, weight in zip(average.parameters(), module.parameters(), strict=True):
                    mean.lerp_(weight, 1 - self.config.momentum)
                for own, statistic in zip(average.buffers(), module.buffers(), strict=True):
                    own.copy_(statistic)  # of a batch norm, an average by itself

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rows: int | None = None,
        **others: Any,
    ) -> ContrastiveLearningOutput:
        """As in every method; in training the anchors then enter the queue."""
        output = super().forward(input_ids, attention_mask, rows, **others)
        if self.training and self.config.queue_size and input_ids is not None:
            attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            self.enqueue(self.momentum_vectors(input_ids[:, :1], attention_mask[:, :1])[:rows])
        return output

    @torch.no_grad()
    def momentum_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The momentum encoder's projected vectors `(B, H)` of sentences `(B, 1, T)`."""
        with self.model.read_with(self.momentum_encoder):
            pooled = ForContrastiveLearning.pool_views(self, input_ids, attention_mask)  # no method perturbs them
        return self.momentum_projection(pooled[:, 0])

    @torch.no_grad()
    def enqueue(self, vectors: torch.Tensor) -> None:
        """Put this batch's vectors `(rows, H)`, those of all processes, behind the others; the oldest leave."""
        everyone, _ = gather_rows(vectors)
        self.queue.copy_(torch.cat([self.queue, everyone.to(self.queue.dtype)])[-len(self.queue) :])

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """`(B, 2, H)` to a scalar; the negatives are those of all processes, and the queue."""
        if not self.config.queue_size:
            return super().contrastive_loss(embeddings, duplicates)
        everyone, _ = gather_rows(embeddings)
        anchors, positives = everyone.unbind(1)
        queue = self.queue.clone()  # `forward` changes it before the backward pass reads it
        in_batch = without(cosine_logits(anchors, positives, self.config.temperature), duplicates)  # (B, B)
        earlier = cosine_logits(anchors, queue, self.config.temperature)  # (B, queue)
        earlier = earlier.masked_fill(~queue.any(1), -torch.inf)  # places that are not filled yet
        own = torch.arange(len(anchors), device=anchors.device)
        return F.cross_entropy(torch.cat([in_batch, earlier], dim=1), own)
