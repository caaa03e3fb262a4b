"""The training side of every method: views in one forward pass, an objective, auxiliary losses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import ModelOutput
from transformers.utils import logging

from .configuration_sentence_encoder import SentenceEncoderConfig
from .distributed import gather_rows, largest
from .masked_language_modeling import MaskedLMHead, mask_tokens, masked_lm_loss
from .mini_batches import in_mini_batches
from .modeling_sentence_encoder import SentenceEncoderModel, SentenceEncoderPreTrainedModel, without_pooler
from .natural_language_inference import NLIClassifier, nli_loss
from .objectives import duplicate_rows, info_nce
from .pooling import BackboneOutput, build_projection

logger = logging.get_logger(__name__)


@dataclass
class ContrastiveLearningOutput(ModelOutput):
    """What a training forward returns.

    Args:
        loss: scalar, the weighted sum to minimise, over the batch of all processes.
        losses: the named parts of it, before their weights.
        embeddings: `(B, V, H)`, the projected views of this process's sentences, as the objective saw them; none
            where only labelled pairs were given.
    """

    loss: torch.Tensor | None = None
    losses: dict[str, torch.Tensor] | None = None
    embeddings: torch.Tensor | None = None


class ForContrastiveLearning(SentenceEncoderPreTrainedModel):
    """The model `AutoModelForPreTraining` loads: the serving model and the heads of training.

    A method overrides the seams it changes, and names them in `seams`: `views` (`pool_views`, `pool_rows`: how the
    encoder turns texts into vectors), `objective` (`contrastive_loss`: what pulls and pushes), `auxiliary`
    (`auxiliary_losses`: what else is learned); `data` (the texts) is decided by its configuration. The loop calls
    `begin_stage` and `after_update`. What a method needs (a generator, labelled pairs, ...) its configuration says.

    What a method remembers between updates (a queue of vectors, an average of weights) survives a resume and is the
    same in every process, alone or under `DistributedDataParallel`, FSDP 2 and ZeRO, if it is kept so:

    * Vectors and counts are persistent buffers (`register_buffer`), of a size that the configuration knows (it has
      `batch_size`), changed in place: wrappers keep the tensors that they found. Every process must make the same
      change, so take what goes in from `gather_rows`. `forward` may change a buffer when the loss was computed from a
      copy of it: the backward pass needs what the loss has read.
    * Weights that no gradient reaches (an average of the encoder, a frozen twin) are a module with parameters. Freeze
      them in `train`: loading unfreezes. Change them in `after_update`, not in `forward`: under FSDP 2 the weights of
      a forward pass are copies, so a change there is lost without an error.
    * No parameter is a scalar: FSDP 2 cannot shard one, and fails. A scalar is a buffer, or a parameter of shape (1,).
    * Random draws come from torch's default generator, which checkpoints save; edits of the texts from the `draw` that
      `edit_sentence` is given.

    Example:
        >>> class Counting(ForContrastiveLearning):  # a buffer, changed in place once an update
        ...     def __init__(self, config):
        ...         super().__init__(config)
        ...         self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        ...
        ...     def after_update(self):
        ...         self.updates += 1
    """

    serving_class: type[SentenceEncoderModel]
    seams: tuple[str, ...] = ()
    # Sentences encoded at a time where the memory is too small for the batch; see `in_mini_batches`.
    mini_batch_size: int | None = None

    def __init__(self, config: SentenceEncoderConfig):
        super().__init__(config)
        self.model = self.serving_class(config)
        self.projection = build_projection(config, at_test=False)
        if config.mlm_weight > 0:
            backbone = config.backbone_config
            self.lm_head = MaskedLMHead(backbone.hidden_size, backbone.vocab_size, backbone.layer_norm_eps)
        if config.nli_classes > 0:
            self.nli_classifier = NLIClassifier(self.projected_size, config.nli_classes)
        self.post_init()

    @property
    def projected_size(self) -> int:
        """Length of a projected view."""
        return self.config.projection_size if self.config.projection == "gelu" else self.config.hidden_size

    def _without_training_heads(self, missing: set[str], unexpected: set[str]) -> tuple[set[str], set[str]]:
        # A serving checkpoint has no training heads: a head that is missing whole starts fresh, and says so.
        lost = {}
        for head in self.serving_class.training_heads:
            tensors = {name for name in self.state_dict() if name.split(".")[0] == head}
            if tensors and tensors <= missing:
                lost[head] = tensors
        for head in sorted(lost.keys() - self.recover_heads(set(lost))):
            logger.warning(f"{type(self).__name__}: the checkpoint has no {head}, training starts it fresh")
        return missing - set().union(*lost.values()), unexpected

    def recover_heads(self, lost: set[str]) -> set[str]:
        """Make up for training heads that a serving checkpoint lacks, from what it has; returns those it could."""
        if lost:
            self.start_from(self.model.backbone)
        return set()

    def start_from(self, backbone: nn.Module) -> None:
        """Take a pre-trained encoder's weights into every encoder of the model that starts from them."""
        for encoder in self.encoders():
            encoder.load_state_dict(without_pooler(backbone))

    def encoders(self) -> list[nn.Module]:
        """The encoders that start from the pre-trained weights."""
        return [self.model.backbone]

    def serving_model(self) -> SentenceEncoderModel:
        """The model to serve, as training has brought it so far."""
        return self.model

    def frozen_parameters(self, stage: str) -> Iterable[nn.Parameter]:
        """What is not trained in a stage, `nli` (labelled pairs alone) or `contrastive`."""
        return ()

    def begin_stage(self, name: str) -> None:
        """Called at the beginning of each stage, `nli` or `contrastive`, before the model is wrapped for it.

        A process that resumes within a stage calls it too, and then loads the checkpoint's tensors over what it did.
        """

    def after_update(self) -> None:
        """Called without gradients after each optimizer step: once for all its accumulated batches, and not after one
        that fp16 has skipped.
        """

    def learn_views(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        """The encoder passes that making views takes beside the one that gives them, for a benchmark to count.

        What they are differentiated by is no parameter of the encoder. There are none by default.
        """

    def learned_token_masks(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """How much each token of views `(B, V, T)` is weakened in each of K layers: `(K, B, V, T)` from 0, not at all.

        For a method whose configuration says `learns_token_masks`.
        """
        raise NotImplementedError

    def masked_lm_heads(self) -> dict[str, MaskedLMHead]:
        """Heads that start from the base model's masked-LM head, by the key of the recipe that asks for them."""
        return {"mlm_weight": self.lm_head} if self.config.mlm_weight > 0 else {}

    def diagnostics(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> dict[str, float]:
        """What a method measures of itself while it trains on labelled pairs, from a batch `(N, V, T)` of them."""
        return {}

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> None:
        """None to tie: `lm_head`, which transformers takes for them by its name, reads the input embeddings itself."""
        return None

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rows: int | None = None,
        nli_input_ids: torch.Tensor | None = None,
        nli_attention_mask: torch.Tensor | None = None,
        nli_labels: torch.Tensor | None = None,
        nli_rows: int | None = None,
    ) -> ContrastiveLearningOutput:
        """One training forward over all views of a batch of sentences, a batch of labelled pairs, or both.

        Args:
            input_ids, attention_mask: `(B, V, T)`: anchor, positive and, for V = 3, hard negative of each sentence.
            rows: how many leading sentences count (all by default). A process whose share of a ragged last batch is
                empty passes one sentence and 0, to take part in the collectives without adding to the loss.
            nli_input_ids, nli_attention_mask: `(N, 2, T)` with `nli_labels` `(N,)`, or `(N, 3, T)` triplets without,
                see `natural_language_inference.nli_loss`; weighted by `nli_weight` beside the contrastive loss, and
                by 1 alone.
            nli_rows: the same as `rows`.
        """
        losses, weighted, embeddings = {}, [], None
        if input_ids is not None:
            attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            views = self.config.encoded_views
            pooled = self.pool_views(input_ids[:, :views], attention_mask[:, :views], rows)[:rows]  # (B, V, H)
            embeddings = self.project(pooled)
            if self.config.contrastive_weight > 0:
                losses["contrastive"] = self.contrastive_loss(embeddings, self.duplicates(input_ids[:rows]))
                weighted.append(self.config.contrastive_weight * losses["contrastive"])
            for name, (weight, value) in self.auxiliary_losses(input_ids, attention_mask, pooled, embeddings).items():
                losses[name] = value
                weighted.append(weight * value)
        if nli_input_ids is not None:
            nli_attention_mask = torch.ones_like(nli_input_ids) if nli_attention_mask is None else nli_attention_mask
            pairs = self.project(self.pool_rows(nli_input_ids, nli_attention_mask)[:nli_rows])
            labels = None if nli_labels is None else nli_labels[:nli_rows]
            losses["nli"] = nli_loss(self.nli_classifier, pairs, labels)
            weighted.append(losses["nli"] * (1.0 if input_ids is None else self.config.nli_weight))
        if not weighted:
            raise ValueError("contrastive_weight: 0 leaves nothing to learn: give an auxiliary loss a weight")
        return ContrastiveLearningOutput(loss=sum(weighted), losses=losses, embeddings=embeddings)

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        """Views seam: `(B, V, T)` token ids to pooled vectors `(B, V, H)`, all views in one forward pass.

        Args:
            rows: how many leading sentences count, for a method that needs the loss to make its views.
        """
        pooled = self.pool_rows(input_ids, attention_mask)
        if self.config.denoise == "none":
            return pooled
        return pooled - self.prompt_biases(input_ids, attention_mask)

    def pool_rows(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The backbone's pooled vectors `(B, V, H)` of token ids `(B, V, T)`, without any prompt bias."""

        def pool(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            _, pooled = self.encode_views(input_ids, attention_mask)
            return pooled.unflatten(0, input_ids.shape[:2])

        return in_mini_batches(pool, self.mini_batch_size, input_ids, attention_mask)

    def encode_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[BackboneOutput, torch.Tensor]:
        """The backbone's outputs and pooled vectors `(B * V, H)` of token ids `(B, V, T)`: a row for each view."""
        return self.model.encode_tokens(input_ids.flatten(0, 1), attention_mask.flatten(0, 1))

    def project(self, pooled: torch.Tensor) -> torch.Tensor:
        """Pooled vectors `(B, V, H)` to the ones the objective compares; a projection may take batch statistics."""
        projected = self.projection(self.model.projection(pooled.flatten(0, 1)))  # one of the two is the identity
        return projected.unflatten(0, pooled.shape[:2])

    def prompt_biases(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
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

    def duplicates(self, input_ids: torch.Tensor) -> torch.Tensor | None:
        """Rows of all processes that hold the same sentence, for token ids `(B, V, T)` of those that count here.

        None where the configuration does not ask for it (`mask_duplicates`).
        """
        if not self.config.mask_duplicates:
            return None
        more = largest(input_ids.shape[-1], input_ids.device) - input_ids.shape[-1]
        everyone, _ = gather_rows(F.pad(input_ids, (0, more), value=self.config.backbone_config.pad_token_id))
        return duplicate_rows(everyone)

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """Objective seam: `(B, V, H)` to a scalar; the negatives span all processes.

        Args:
            duplicates: rows of all processes that are none of each other's negatives, see `duplicates`.
        """
        everyone, _ = gather_rows(embeddings)
        anchors, positives, *hard_negatives = everyone.unbind(1)
        return info_nce(
            anchors,
            positives,
            *hard_negatives,
            temperature=self.config.temperature,
            hard_negative_weight=self.config.hard_negative_weight,
            duplicates=duplicates,
        )

    def maskable(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Which tokens may be masked: real ones that are not special. Ids of any shape to bool of the same."""
        if self.config.special_token_ids is None or self.config.mask_token_id is None:
            raise ValueError("special_token_ids, mask_token_id: give the configuration those of the tokenizer")
        special = torch.tensor(self.config.special_token_ids, device=input_ids.device)
        return attention_mask.bool() & ~torch.isin(input_ids, special)

    def auxiliary_losses(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, pooled: torch.Tensor, embeddings: torch.Tensor
    ) -> dict[str, tuple[float, torch.Tensor]]:
        """Auxiliary seam: named losses, each with its weight.

        Args:
            input_ids, attention_mask: `(B, V, T)`; views beyond `encoded_views` of the configuration among them.
            pooled, embeddings: the vectors before and after the projection, of the sentences that count alone.
        """
        if self.config.mlm_weight == 0:
            return {}
        maskable = self.maskable(input_ids, attention_mask)
        maskable[len(pooled) :] = False
        masked_ids, labels = mask_tokens(
            input_ids.flatten(0, 1),
            maskable.flatten(0, 1),
            probability=self.config.mlm_probability,
            mask_token_id=self.config.mask_token_id,
            vocab_size=self.config.vocab_size,
        )
        outputs, _ = self.encode_views(masked_ids.view_as(input_ids), attention_mask)
        logits = self.lm_head(outputs.last_hidden_state, self.get_input_embeddings().weight)
        return {"mlm": (self.config.mlm_weight, masked_lm_loss(logits, labels))}
