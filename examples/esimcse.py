r"""ESimCSE: repeated words in the positive, and negatives from earlier batches. A new method in one file.

The positive of a sentence of N word pieces repeats some of them, drawn anew in every batch. The two then have
different lengths (section 3.1):

.. math:: \text{dup\_len} \sim U\{0, \dots, \max(2, \lfloor \text{dup\_rate} \cdot N \rfloor)\}

A momentum encoder, a moving average of the encoder's weights, encodes the sentences too. Its vectors :math:`h_m^+` are
put into a queue and are negatives of later batches (section 3.2):

.. math:: \theta_m \leftarrow \lambda \theta_m + (1 - \lambda) \theta_e, \qquad
          \ell_i = -\log \frac{e^{\cos(h_i, h_i^+)/\tau}}
          {\sum_j e^{\cos(h_i, h_j^+)/\tau} + \sum_m e^{\cos(h_i, h_m^+)/\tau}}

To use it, copy this file to `modeling/methods/esimcse/__init__.py`.
Then `--method esimcse` trains it from any recipe, alone or as `esimcse+l2pcsr` or `esimcse+diffaug`. The file
`tests/methods/esimcse.py` runs all tests of methods on it:

    TESTED = Tested(
        {"batch_size": 4},
        neutral={"repetition_rate": 0.0, "queue_factor": 0.0},
        exact={"temperature": 0.2},
        passes=(PASS, ("BertModel", "nothing", 8)),
        combinations=("esimcse+l2pcsr", "esimcse+diffaug"),
    )

References:
    Wu, Gao, Zang, Han, Wang, Hu 2022, "ESimCSE: Enhanced Sample Building Method for Contrastive Learning of
    Unsupervised Sentence Embedding", COLING. The paper does not say the following, so it was decided here. The
    momentum encoder reads the anchors, not the positives, without dropout. It starts as a copy of the encoder at the
    beginning of a stage. The queue starts empty, and a batch enters it after its loss was computed.

Relations:
    With `repetition_rate` 0 and `queue_factor` 0 it is SimCSE. The queue is MoCo's (He et al. 2020). In a combination
    the momentum encoder averages the backbone and the projection. It uses the current prefixes, and its inputs are not
    weakened.
"""

from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.distributed import gather_rows
from ...contrastive.keys import key
from ...contrastive.sentence_encoder import SentenceEncoderModel, new_encoder
from ...contrastive.training_model import ContrastiveLearningOutput, ForContrastiveLearning
from ...contrastive.weight_average import update_average
from ...objectives import cosine_logits, row_numbers, without_duplicates
from ...pooling import build_projection


class ESimCSEConfig(SentenceEncoderConfig):
    """The configuration of ESimCSE."""

    model_type = "esimcse"

    repetition_rate: float = key(
        0.32, "dup_rate, the largest share of word pieces repeated in a long sentence; 0 for none.", "[0, 1]"
    )
    momentum: float = key(0.995, "λ of the momentum encoder.", "[0, 1]")
    queue_factor: float = key(
        2.5, "Vectors in the queue, as a multiple of the batch size; 0 for no queue.", "[0, 1_000]"
    )

    @property
    def queue_size(self) -> int:
        """Number of vectors in the queue; 0 if the batch size is not known."""
        return round(self.queue_factor * (self.batch_size or 0))

    def most_added_pieces(self, length: int) -> int:
        return max(2, int(self.repetition_rate * length)) if self.repetition_rate else 0

    def edit_sentence(self, views: list[list[int]], draw: Random) -> list[list[int]]:
        """Return the unchanged anchor, and the positive with some pieces repeated."""
        anchor, positive = views
        most = min(len(positive), self.most_added_pieces(len(positive)))
        repeated = set(draw.sample(range(len(positive)), draw.randint(0, most)))
        return [anchor, [piece for place, one in enumerate(positive) for piece in [one] * (1 + (place in repeated))]]

    @property
    def takes_three_views(self) -> bool:
        return False  # the queue has the negatives


class ESimCSEModel(SentenceEncoderModel):
    """The encoder that an ESimCSE checkpoint serves."""

    config_class = ESimCSEConfig
    training_heads = (*SentenceEncoderModel.training_heads, "momentum_encoder", "momentum_projection", "queue")


class ESimCSEForContrastiveLearning(ForContrastiveLearning):
    """The training model of ESimCSE. It has a momentum encoder and a queue if `queue_size` is above 0."""

    config_class = ESimCSEConfig
    serving_class = ESimCSEModel
    seams = ("data", "objective")

    def __init__(self, config: ESimCSEConfig):
        super().__init__(config)
        if config.queue_size:
            self.momentum_encoder = new_encoder(config.backbone_config)
            self.momentum_projection = build_projection(config, at_test=config.projection_at_test)
            self.register_buffer("queue", torch.zeros(config.queue_size, self.projected_size))
        self.post_init()
        self.train()

    def averaged(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return pairs of a module that is an average, and the module that it averages."""
        projection = self.model.projection if self.config.projection_at_test else self.projection
        return [(self.momentum_encoder, self.model.backbone), (self.momentum_projection, projection)]

    def train(self, mode: bool = True) -> "ESimCSEForContrastiveLearning":
        super().train(mode)
        if self.config.queue_size:
            for average, _ in self.averaged():
                average.requires_grad_(False).eval()
        return self

    def initialise_heads(self, lost: set[str]) -> set[str]:
        """Accept a repository without average and queue, because `begin_stage` makes both."""
        if "queue" in lost:
            self.queue.zero_()
        return super().initialise_heads(lost) | ({"momentum_encoder", "momentum_projection", "queue"} & lost)

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
                update_average(average, module, self.config.momentum)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rows: int | None = None,
        **others: Any,
    ) -> ContrastiveLearningOutput:
        """Compute the losses, then add the anchors to the queue in training."""
        output = super().forward(input_ids, attention_mask, rows, **others)
        if self.training and self.config.queue_size and input_ids is not None:
            attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            self.enqueue(self.momentum_vectors(input_ids[:, :1], attention_mask[:, :1])[:rows])
        return output

    @torch.no_grad()
    def momentum_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Encode sentences `(B, 1, T)` with the momentum encoder and its projection, `(B, H)`."""
        with self.model.read_with(self.momentum_encoder):
            # Not what another method makes of the views, such as perturbed ones.
            pooled = ForContrastiveLearning.pool_views(self, input_ids, attention_mask)
        return self.momentum_projection(pooled[:, 0])

    @torch.no_grad()
    def enqueue(self, vectors: torch.Tensor) -> None:
        """Append the vectors `(rows, H)` of all processes to the queue, and drop the oldest ones."""
        everyone, _ = gather_rows(vectors)
        self.queue.copy_(torch.cat([self.queue, everyone.to(self.queue.dtype)])[-len(self.queue) :])

    def objective(self, embeddings: torch.Tensor, mine: slice, duplicates: torch.Tensor | None) -> torch.Tensor:
        """Return the share in the loss, with the vectors of the queue as negatives of every anchor."""
        if not self.config.queue_size:
            return super().objective(embeddings, mine, duplicates)
        anchors, positives = embeddings.unbind(1)
        own, targets = anchors[mine], row_numbers(mine, anchors)
        queue = self.queue.clone()  # `forward` changes it before the backward pass reads it
        in_batch = without_duplicates(cosine_logits(own, positives, self.config.temperature), duplicates)  # (b, B)
        earlier = cosine_logits(own, queue, self.config.temperature)  # (b, queue)
        earlier = earlier.masked_fill(~queue.any(1), -torch.inf)  # places not filled yet
        losses = F.cross_entropy(torch.cat([in_batch, earlier], dim=1), targets, reduction="sum")
        return losses / len(anchors)


METHOD = (ESimCSEConfig, ESimCSEModel, ESimCSEForContrastiveLearning)
