r"""SG-OPT: an encoder guided by the hidden layers of a frozen copy of itself.

There are two copies of the pre-trained encoder. The tuned one computes a sentence's embedding c_i = [CLS]. Each layer
of the frozen one (the twin) makes a view of the sentence, pooled over the tokens, :math:`h_{ik} = p(H_{ik})`. With a
shared projection head f, each embedding is pulled towards the views of its sentence and pushed away from those of the
others (section 3.2, opt3):

.. math:: L = \frac{1}{b(l+1)} \sum_{i,k} -\log \frac{\phi(c_i, h_{ik})}
          {\phi(c_i, h_{ik}) + \sum_{m \ne i} \sum_n \phi(c_i, h_{mn})}
          + \lambda \lVert \theta_T - \theta_F \rVert_2^2, \quad \phi(u, v) = e^{\cos(f(u), f(v))/\tau}

The frozen twin and the head are dropped at test.

References:
    Kim, Yoo, Lee 2021, "Self-Guided Contrastive Learning for BERT Sentence Representations", ACL, section 3. The
    release keeps dropout in the twin on (as `twin_dropout` does), uses mean pooling by default (the paper and this
    model use the maximum), and reports the last weights, while the zoo keeps the best ones on dev.

Relations:
    With `variant="opt2", guide="self"`, no regulariser and SimCSE's projection it is SimCSE. It changes data, views,
    objective and auxiliary loss. It therefore combines with no other method, but with any pooling and prompt.
"""

import torch
from transformers import PreTrainedModel

from ...contrastive.backbones import embedding_layer
from ...contrastive.packing import packed
from ...contrastive.sentence_encoder import SentenceEncoderModel, new_encoder
from ...contrastive.training_model import ForContrastiveLearning
from ...objectives import parameter_distance, self_guided
from ...pooling import pool
from .configuration import SGOPTConfig


class SGOPTModel(SentenceEncoderModel):
    """The encoder that an SG-OPT checkpoint serves: only the tuned one."""

    config_class = SGOPTConfig
    training_heads = (*SentenceEncoderModel.training_heads, "twin")


class SGOPTForContrastiveLearning(ForContrastiveLearning):
    """The training model of SG-OPT.

    The views of a batch `(B, V, T)` are the sentence and, for V = 2, its back-translation, which then guides it.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = SGOPTForContrastiveLearning(SGOPTConfig(backbone_config=tiny, projection_size=16))
        >>> ids = torch.randint(9, (4, 1, 6))
        >>> output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        >>> output.embeddings.shape, list(output.losses)  # the embedding and a view for each of 3 layers
        (torch.Size([4, 4, 16]), ['contrastive', 'regularizer'])
    """

    config_class = SGOPTConfig
    serving_class = SGOPTModel
    seams = ("data", "views", "objective", "auxiliary")
    ranked_views = (0, 0)  # the other views are the twin's

    def __init__(self, config: SGOPTConfig):
        super().__init__(config)
        if config.has_twin:
            self.twin = new_encoder(config.backbone_config)
        self.post_init()
        self.train()

    def encoders(self) -> list[PreTrainedModel]:
        return super().encoders() + ([self.twin] if self.config.has_twin else [])

    def train(self, mode: bool = True) -> "SGOPTForContrastiveLearning":
        super().train(mode)
        # Frozen here, because loading unfreezes. Nothing is unfrozen: a stage may train less (`frozen_parameters`).
        if self.config.freeze_embeddings:
            embedding_layer(self.model.backbone).requires_grad_(False)
        if self.config.has_twin:
            self.twin.requires_grad_(False).train(mode and self.config.twin_dropout)
        return self

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        """Encode `(B, V, T)` to `(B, 1 + K, H)`: embeddings, then views of all layers (opt3) or a random one."""
        if self.config.guide == "self":
            return super().pool_views(input_ids, attention_mask, rows)
        embeddings = super().pool_views(input_ids[:, :1], attention_mask[:, :1], rows)  # (B, 1, H)
        views = self.guiding_views(input_ids[:, -1], attention_mask[:, -1])  # (B, K, H)
        if self.config.variant != "opt3":
            drawn = torch.randint(views.shape[1], (len(views),), device=views.device)
            views = views[torch.arange(len(views), device=views.device), drawn][:, None]
        return torch.cat([embeddings, views.to(embeddings.dtype)], dim=1)

    @torch.no_grad()
    def guiding_views(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the twin's views `(B, K, H)` of token ids `(B, T)`, one for each layer of `view_layers`."""
        packing = self.packing(self.twin, attention_mask)
        with packed(self.twin, attention_mask, packing) as twin:
            states = twin(input_ids=input_ids, output_hidden_states=True).hidden_states
        chosen = [states[layer] for layer in self.config.view_layers]
        if packing is not None:
            chosen = [packing.unpack(state) for state in chosen]
        return torch.stack([pool((state,), attention_mask, self.config.view_pooling) for state in chosen], dim=1)

    def objective(self, embeddings: torch.Tensor, mine: slice, duplicates: torch.Tensor | None) -> torch.Tensor:
        return self_guided(
            embeddings[:, 0],
            embeddings[:, 1:],
            temperature=self.config.temperature,
            variant=self.config.variant,
            duplicates=duplicates,
            rows=mine,
        )

    def weight_losses(self) -> dict[str, tuple[float, torch.Tensor]]:
        weight = self.config.regularizer_weight
        return {"regularizer": (weight, parameter_distance(self.model.backbone, self.twin))} if weight > 0 else {}
