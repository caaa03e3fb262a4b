"""The training side of every method: views in one forward pass, an objective, auxiliary losses."""

from dataclasses import dataclass

import torch
from transformers.modeling_outputs import ModelOutput
from transformers.utils import logging

from .configuration_sentence_encoder import SentenceEncoderConfig
from .distributed import gather_rows
from .masked_language_modeling import MaskedLMHead, mask_tokens, masked_lm_loss
from .modeling_sentence_encoder import SentenceEncoderModel, SentenceEncoderPreTrainedModel
from .objectives import info_nce
from .pooling import build_projection

logger = logging.get_logger(__name__)


@dataclass
class ContrastiveLearningOutput(ModelOutput):
    """What a training forward returns.

    Args:
        loss: scalar, the weighted sum to minimise, over the batch of all processes.
        losses: the named parts of it, before their weights.
        embeddings: `(B, V, H)`, the projected views of this process's sentences, as the objective saw them.
    """

    loss: torch.Tensor | None = None
    losses: dict[str, torch.Tensor] | None = None
    embeddings: torch.Tensor | None = None


class ForContrastiveLearning(SentenceEncoderPreTrainedModel):
    """The model `AutoModelForPreTraining` loads: the serving model and the heads of training.

    A method overrides the seam it changes: `encode_views` (how the encoder turns texts into vectors),
    `contrastive_loss` (what pulls and pushes) or `auxiliary_losses` (what else is learned).
    """

    serving_class: type[SentenceEncoderModel]

    def __init__(self, config: SentenceEncoderConfig):
        super().__init__(config)
        self.model = self.serving_class(config)
        self.projection = build_projection(
            "none" if config.projection_at_test else config.projection, config.hidden_size
        )
        if config.mlm_weight > 0:
            backbone = config.backbone_config
            self.lm_head = MaskedLMHead(backbone.hidden_size, backbone.vocab_size, backbone.layer_norm_eps)
        self.post_init()

    def _without_training_heads(self, missing, unexpected):
        # A serving checkpoint has no training heads: a head that is missing whole starts fresh, and says so.
        for head in self.serving_class.training_heads:
            tensors = {name for name in self.state_dict() if name.split(".")[0] == head}
            if tensors and tensors <= missing:
                logger.warning(f"{type(self).__name__}: the checkpoint has no {head}, training starts it fresh")
                missing = missing - tensors
        return missing, unexpected

    def get_input_embeddings(self):
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value):
        self.model.set_input_embeddings(value)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> ContrastiveLearningOutput:
        """One training forward over all views of a batch of sentences.

        Args:
            input_ids, attention_mask: `(B, V, T)`: anchor, positive and, for V = 3, hard negative of each sentence.
            rows: how many leading sentences count (all by default). A process whose share of a ragged last batch is
                empty passes one sentence and 0, to take part in the collectives without adding to the loss.
        """
        rows = len(input_ids) if rows is None else rows
        embeddings = self.encode_views(input_ids, attention_mask, rows)  # (B, V, H)
        losses = {"contrastive": self.contrastive_loss(embeddings)}
        loss = losses["contrastive"]
        for name, (weight, value) in self.auxiliary_losses(input_ids, attention_mask, rows).items():
            losses[name] = value
            loss = loss + weight * value
        return ContrastiveLearningOutput(loss=loss, losses=losses, embeddings=embeddings)

    def encode_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        """Views seam: `(B, V, T)` token ids to projected vectors, all views in one forward pass.

        Returns:
            `(B, V, H)`, of the first `rows` sentences alone if given: a projection may take statistics of its batch.
        """
        sentences, views, _ = input_ids.shape
        _, pooled = self.model.encode_tokens(input_ids.flatten(0, 1), attention_mask.flatten(0, 1))
        pooled = pooled.unflatten(0, (sentences, views))  # (B, V, H)
        if self.config.denoise != "none":
            pooled = pooled - self._prompt_biases(input_ids, attention_mask)
        pooled = pooled[:rows]
        projected = self.projection(self.model.projection(pooled.flatten(0, 1)))  # one of the two is the identity
        return projected.unflatten(0, (len(pooled), views))

    def _prompt_biases(self, input_ids, attention_mask):
        """`(B, V, H)`: each view's bias under its own template; one table for each template."""
        views = input_ids.shape[1]
        last = len(self.config.prompt_token_ids) - 1
        biases = []
        for template in range(min(views, last + 1)):
            own = slice(template, views if template == last else template + 1)
            ids, mask = input_ids[:, own], attention_mask[:, own]
            bias = self.model.prompt_bias(ids.flatten(0, 1), mask.flatten(0, 1), template)
            biases.append(bias.unflatten(0, ids.shape[:2]))
        return torch.cat(biases, dim=1)

    def contrastive_loss(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Objective seam: `(B, V, H)` to a scalar; the negatives span all processes."""
        everyone, _ = gather_rows(embeddings)
        anchors, positives, *hard_negatives = everyone.unbind(1)
        return info_nce(
            anchors,
            positives,
            *hard_negatives,
            temperature=self.config.temperature,
            hard_negative_weight=self.config.hard_negative_weight,
        )

    def auxiliary_losses(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int
    ) -> dict[str, tuple[float, torch.Tensor]]:
        """Auxiliary seam: named losses of the first `rows` sentences, each with its weight."""
        if self.config.mlm_weight == 0:
            return {}
        special = torch.tensor(self.config.special_token_ids, device=input_ids.device)
        maskable = attention_mask.bool() & ~torch.isin(input_ids, special)
        maskable[rows:] = False
        input_ids, attention_mask = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
        masked_ids, labels = mask_tokens(
            input_ids,
            maskable.flatten(0, 1),
            probability=self.config.mlm_probability,
            mask_token_id=self.config.mask_token_id,
            vocab_size=self.config.vocab_size,
        )
        outputs, _ = self.model.encode_tokens(masked_ids, attention_mask)
        logits = self.lm_head(outputs.last_hidden_state, self.get_input_embeddings().weight)
        return {"mlm": (self.config.mlm_weight, masked_lm_loss(logits, labels))}
