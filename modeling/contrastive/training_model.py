"""The training model of every method: views in one forward pass, an objective, auxiliary losses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput
from transformers.utils import logging

from ..objectives import duplicate_rows, info_nce
from ..pooling import build_projection
from ..serving.modeling_csezoo import CsezooModel
from ..serving.pooling_csezoo import BackboneOutput
from .configuration import SentenceEncoderConfig
from .devices import tensor_on
from .distributed import gather_rows, number_of_each, sum_over_processes
from .masked_language_modeling import MaskedLMHead, MaskedLMTransform, chosen_tokens, mask_tokens, masked_lm_loss
from .mini_batches import in_mini_batches
from .natural_language_inference import NLIClassifier, nli_loss
from .pretrained import SentenceEncoderPreTrainedModel
from .rank_distillation import rank_consistency, rank_distillation
from .sentence_encoder import SentenceEncoderModel
from .weight_average import update_average

logger = logging.get_logger(__name__)


@dataclass
class ContrastiveLearningOutput(ModelOutput):
    """The output of a training forward.

    Args:
        loss: scalar, the weighted sum to minimise, over the batch of all processes.
        losses: its named parts, before they are weighted.
        embeddings: `(B, V, H)`, the projected views of this process's sentences, as in the objective; None for
            labelled pairs only.
    """

    loss: torch.Tensor | None = None
    losses: dict[str, torch.Tensor] | None = None
    embeddings: torch.Tensor | None = None


class ForContrastiveLearning(SentenceEncoderPreTrainedModel):
    """The model that `AutoModelForPreTraining` loads: the serving model and the training heads.

    A method overrides the seams it changes and lists them in `seams`: `views` (`pool_views` and `pool_rows`: how the
    encoder turns texts into vectors), `objective` (`objective`), `auxiliary` (`auxiliary_losses`) and `data`
    (the texts, in its configuration). The loop calls `begin_stage` and `after_update`. The configuration says what a
    method needs (a generator, labelled pairs, ...).

    The state that a method keeps between updates (a queue of vectors, an average of weights) survives a resume, and is
    the same in every process under `DistributedDataParallel`, FSDP 2 and ZeRO, if it follows these rules:

    * Vectors and counts are persistent buffers of a size that follows from the configuration (which has `batch_size`).
      Change them in place, because wrappers keep the original tensors, and in every process alike: what goes in comes
      from `gather_rows`. A loss that reads a buffer which `forward` changes reads a copy of it, because the backward
      pass needs the same values.
    * Weights without gradients are a module with parameters. Freeze them in `train`, because loading unfreezes them,
      and change them in `after_update`: under FSDP 2 the weights of a forward pass are copies.
    * No parameter is a scalar, which FSDP 2 fails to shard. Use a buffer, or a parameter of shape (1,).
    * Random numbers come from torch's default generator, which checkpoints save. It differs between processes: what an
      objective draws for the sentences of all goes through `equal_draw`. Edits of texts use their argument `draw`.

    Example:
        >>> class Counting(ForContrastiveLearning):  # a buffer, changed in place once per update
        ...     def __init__(self, config):
        ...         super().__init__(config)
        ...         self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        ...
        ...     def after_update(self):
        ...         self.updates += 1
    """

    serving_class: type[SentenceEncoderModel]
    seams: tuple[str, ...] = ()
    distinct_views = 1  # how many views the encoder reads in different ways; later ones are read as the last of them
    ranked_views: tuple[int, int] = (0, 1)  # the views of a sentence whose rankings are learned
    # Sentences to encode at a time if the batch is too large for the memory, see `in_mini_batches`.
    mini_batch_size: int | None = None

    def __init__(self, config: SentenceEncoderConfig):
        super().__init__(config)
        if config.rank_consistency_weight > 0 and self.ranked_views == (0, 0):
            raise ValueError(
                f"rank_consistency_weight: {config.model_type} encodes one view of a sentence, and so has no second "
                "ranking; set rank_consistency_weight: 0"
            )
        self.model = self.serving_class(config)
        self.projection = build_projection(config, at_test=False)
        if config.ema_decay > 0:
            self.average = self.serving_class(config).requires_grad_(False)
        if config.mlm_weight > 0:
            self.lm_head = MaskedLMHead(self.model.backbone)
        if config.nli_classifies:
            self.nli_classifier = NLIClassifier(self.projected_size, config.nli_classes)
        self.post_init()

    @property
    def projected_size(self) -> int:
        """Length of a projected view."""
        return self.config.projection_size if self.config.projection == "gelu" else self.config.pooled_size

    def _accept_heads(self, missing: set[str], unexpected: set[str]) -> tuple[set[str], set[str]]:
        # A published repository has no training heads. A head without tensors starts from new weights, with a warning.
        lost = {}
        served = (vars(cls).get("serving_class") for cls in type(self).__mro__)  # of each method of a combination
        for head in {head for each in served if each for head in each.training_heads}:
            tensors = {name for name in self.state_dict() if name.split(".")[0] == head}
            if tensors and tensors <= missing:
                lost[head] = tensors
        for head in sorted(lost.keys() - self.initialise_heads(set(lost))):
            logger.warning(f"{type(self).__name__}: the checkpoint has no {head}; training starts with a new one")
        return missing - set().union(*lost.values()), unexpected

    def initialise_heads(self, lost: set[str]) -> set[str]:
        """Initialise the heads that a checkpoint lacks, and return those that need no warning.

        Encoders and averages start as copies of what they have learned from: the served encoder.
        """
        sources = dict([*((encoder, self.model.backbone) for encoder in self.encoders()), *self.averages()])
        copies = {name: head for name, head in self.named_children() if name in lost and head in sources}
        for head in copies.values():
            head.load_state_dict(sources[head].state_dict())
        return set(copies)

    @torch.no_grad()
    def copy_published(self, form: CsezooModel) -> None:
        """Copy the weights of a published repository. The heads of training are new."""
        self.model.copy_published(form)
        tensors = {name for name in self.state_dict() if not name.startswith("model.")}
        self._accept_heads(tensors, set())
        if self.config.ema_decay > 0:
            self.average.tokenizer = form.tokenizer

    def start_from(self, backbone: nn.Module) -> None:
        """Load a pre-trained encoder's weights into every encoder of the model that starts from them."""
        tensors = {name: tensor for name, tensor in backbone.state_dict().items() if not name.startswith("pooler.")}
        for encoder in self.encoders():  # none has a pooler
            encoder.load_state_dict(tensors)
        self._restart_averages()

    def averages(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return every average of weights with the module that it averages."""
        return [(self.average, self.model)] if self.config.ema_decay > 0 else []

    def _restart_averages(self) -> None:
        for average, module in self.averages():
            average.load_state_dict(module.state_dict())

    def train(self, mode: bool = True) -> "ForContrastiveLearning":
        super().train(mode)
        for average, _ in self.averages():
            average.requires_grad_(False).eval()  # frozen here, because loading unfreezes it
        return self

    def encoders(self) -> list[PreTrainedModel]:
        """Return the encoders that start from the pre-trained weights."""
        return [self.model.backbone]

    def serving_model(self) -> SentenceEncoderModel:
        """Return the model to serve, with the weights trained so far or their average."""
        return self.average if self.config.ema_decay > 0 else self.model

    def served_encoders(self) -> list[nn.Module]:
        """Return the encoders of the serving model to choose from: the one with the better dev score is served."""
        return [self.serving_model().backbone]

    def frozen_parameters(self, stage: str) -> Iterable[nn.Parameter]:
        """Return the parameters that a stage does not train, `nli` (labelled pairs only) or `contrastive`."""
        return self.model.backbone.parameters() if self.config.lora_rank else ()

    def begin_stage(self, name: str) -> None:
        """Prepare for a stage, `nli` or `contrastive`. The loop calls this before it wraps the model.

        A run that resumes within a stage calls it too, and then loads the checkpoint's tensors over its changes.
        """
        self._restart_averages()

    def after_update(self) -> None:
        """Update the method's state, without gradients, after an optimizer step.

        The loop calls this once for all accumulated batches, and not for an update that fp16 skipped.
        """
        for average, module in self.averages():
            update_average(average, module, self.config.ema_decay)

    def learn_views(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        """Run the extra encoder passes with which a method learns its views, so that a benchmark can count them.

        No parameter of the encoder gets a gradient in them. By default there are none.
        """

    def learned_token_masks(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return how much each token of views `(B, V, T)` is weakened in each of K layers, `(K, B, V, T)`.

        0 means not weakened. Only methods whose configuration has `learns_token_masks` implement this.
        """
        raise NotImplementedError

    def masked_lm_heads(self) -> dict[str, MaskedLMTransform]:
        """Return the heads that start from the base model's masked-LM head, by the recipe key that adds them."""
        heads: dict[str, MaskedLMTransform] = {"mlm_weight": self.lm_head} if self.config.mlm_weight > 0 else {}
        return heads | ({"projection": self.model.transform} if self.config.projection == "mlm_transform" else {})

    def diagnostics(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> dict[str, float]:
        """Return what a method measures in training on labelled pairs, from a batch `(N, V, T)` of them."""
        return {}

    def get_output_embeddings(self) -> None:
        """Return None: transformers would tie `lm_head` by its name, but it reads the input embeddings itself."""
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
        teacher_vectors: torch.Tensor | None = None,
    ) -> ContrastiveLearningOutput:
        """Compute the losses of a batch of sentences, a batch of labelled pairs, or both.

        Args:
            input_ids, attention_mask: `(B, V, T)`: anchor, positive and, for V = 3, hard negative of each sentence.
            rows: how many leading sentences count (all by default). A process without a share of the last batch passes
                one sentence and `rows=0`, to take part in the collectives without adding to the loss.
            nli_input_ids, nli_attention_mask: `(N, 2, T)` with `nli_labels` `(N,)`, or `(N, 3, T)` triplets without
                labels, see `labelled_loss`. Weighted by `nli_weight` beside the contrastive loss, and by 1 without it.
            nli_rows: how many leading labelled rows count, as `rows`.
            teacher_vectors: `(B, K)`, the teachers' vectors of the sentences, for rank distillation. The loss is added
                if `rank_weight` is above 0.
        """
        losses: dict[str, tuple[float, torch.Tensor]] = {}  # with their weights
        embeddings = None
        if input_ids is not None:
            attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            # Before the encoder's pass, because a backward pass begins with what was computed last. The gradient of
            # all weights would need memory beside the encoder's activations.
            of_weights = self.weight_losses()
            views = self.config.encoded_views
            pooled = self.pool_views(input_ids[:, :views], attention_mask[:, :views], rows)[:rows]  # (B, V, H)
            embeddings = self.project(pooled)
            if self.config.contrastive_weight > 0:
                loss = self.contrastive_loss(embeddings, self.duplicates(input_ids[:rows]))
                losses["contrastive"] = self.config.contrastive_weight, loss
            losses |= self.auxiliary_losses(input_ids, attention_mask, pooled, embeddings) | of_weights
            if self.config.rank_weight > 0:
                losses["rank"] = self.config.rank_weight, self.rank_loss(embeddings, teacher_vectors)
            if (weight := self.config.rank_consistency_weight) > 0:
                losses["rank_consistency"] = weight, self.rank_consistency_loss(embeddings)
        if nli_input_ids is not None:
            nli_attention_mask = torch.ones_like(nli_input_ids) if nli_attention_mask is None else nli_attention_mask
            pooled = self.pool_rows(nli_input_ids, nli_attention_mask)
            if self.config.denoise == "always":  # with `train` labelled pairs keep theirs, as in DiffAug's release
                pooled = pooled - self.prompt_biases(nli_input_ids, nli_attention_mask)
            pairs = self.project(pooled[:nli_rows])
            labels = None if nli_labels is None else nli_labels[:nli_rows]
            weight = 1.0 if input_ids is None else self.config.nli_weight
            losses["nli"] = weight, self.labelled_loss(pairs, labels, nli_input_ids[:nli_rows])
        if not losses:
            raise ValueError(
                "contrastive_weight: 0 needs an auxiliary loss with a weight; set one, such as mlm_weight"
            )
        total = cast(torch.Tensor, sum(weight * value for weight, value in losses.values()))
        parts = {name: value for name, (_, value) in losses.items()}
        return ContrastiveLearningOutput(loss=total, losses=parts, embeddings=embeddings)

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        """Views seam: encode token ids `(B, V, T)` to pooled vectors `(B, V, H)`, all views in one forward pass.

        Args:
            input_ids, attention_mask: `(B, V, T)`.
            rows: how many leading sentences count, for a method that uses the loss to make its views.
        """
        return self.denoised(self.pool_rows(input_ids, attention_mask), input_ids, attention_mask)

    def denoised(self, pooled: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Subtract from pooled vectors `(B, V, H)` the biases of their templates, if training does that."""
        return pooled if self.config.denoise == "none" else pooled - self.prompt_biases(input_ids, attention_mask)

    def pool_rows(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, pooled_only: bool = True
    ) -> torch.Tensor:
        """Encode token ids `(B, V, T)` to pooled vectors `(B, V, H)`, without subtracting a prompt's bias.

        Args:
            pooled_only: the last layer may leave out tokens that the pooling does not read.
        """

        def pool(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            _, pooled = self.encode_views(input_ids, attention_mask, pooled_only=pooled_only)
            return pooled.unflatten(0, input_ids.shape[:2])

        return in_mini_batches(pool, self.mini_batch_size, input_ids, attention_mask)

    def encode_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **inputs: Any
    ) -> tuple[BackboneOutput, torch.Tensor]:
        """Return the backbone's outputs and pooled vectors `(B * V, H)` of token ids `(B, V, T)`, one row per view.

        Args:
            inputs: further arguments of `encode_tokens`.
        """
        if self.distinct_views > 1:
            views = torch.arange(input_ids.shape[1], device=input_ids.device).repeat(len(input_ids))
            inputs |= self.view_inputs(views)
        return self.model.encode_tokens(input_ids.flatten(0, 1), attention_mask.flatten(0, 1), **inputs)

    def view_inputs(self, views: torch.Tensor) -> dict[str, Any]:
        """Return what the encoder needs to know of rows of these views, as arguments of its `run_backbone`.

        Only methods with `distinct_views` above 1 implement this.

        Args:
            views: `(rows or 1,)`, 0 for the anchor, 1 and above for its positive and hard negative.
        """
        raise NotImplementedError

    def project(self, pooled: torch.Tensor) -> torch.Tensor:
        """Project pooled vectors `(B, V, H)` for the objective. A projection may use batch statistics."""
        projected = self.projection(self.model.projection(pooled.flatten(0, 1)))  # one of the two is the identity
        return projected.unflatten(0, pooled.shape[:2])

    def prompt_biases(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the bias of each view under its template, `(B, V, H)`. Views that are encoded alike share a pass."""
        last = len(self.config.prompt_token_ids) - 1
        alike = max(last, self.distinct_views - 1)  # views from here on are encoded alike
        biases = []
        for view in range(min(input_ids.shape[1], alike + 1)):
            same = slice(view, None if view == alike else view + 1)
            ids, mask = input_ids[:, same], attention_mask[:, same]
            distinct = self.distinct_views > 1
            inputs = self.view_inputs(torch.full((1,), view, device=ids.device)) if distinct else {}
            bias = self.model.prompt_bias(ids.flatten(0, 1), mask.flatten(0, 1), min(view, last), **inputs)
            biases.append(bias.unflatten(0, ids.shape[:2]))
        return torch.cat(biases, dim=1)

    def duplicates(self, input_ids: torch.Tensor) -> torch.Tensor | None:
        """Find sentences of all processes that equal one of the b sentences `(b, V, T)` of this one.

        Returns:
            `(b, B)` of bool, see `duplicate_rows`, B the sentences of all processes; None without `mask_duplicates`.
        """
        if not self.config.mask_duplicates:
            return None
        more = max(number_of_each(input_ids.shape[-1])) - input_ids.shape[-1]
        padding = self.config.backbone_config.pad_token_id
        everyone, mine = gather_rows(F.pad(input_ids, (0, more), value=padding))
        return duplicate_rows(everyone, mine)

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the loss of this process's embeddings `(b, V, H)`, with the negatives of all processes.

        Args:
            duplicates: `(b, B)`, sentences of all processes that are no negatives of its own, see `duplicates`.
        """
        return sum_over_processes(self.objective(*gather_rows(embeddings), duplicates))

    def objective(self, embeddings: torch.Tensor, mine: slice, duplicates: torch.Tensor | None) -> torch.Tensor:
        """Objective seam: return the sum of the losses of this process's sentences, divided by B.

        Args:
            embeddings: `(B, V, H)`, of the sentences of all processes.
            mine: the b sentences of this process.
            duplicates: as in `contrastive_loss`.
        """
        anchors, positives, *hard_negatives = embeddings.unbind(1)
        return info_nce(
            anchors,
            positives,
            *hard_negatives,
            temperature=self.config.temperature,
            hard_negative_weight=self.config.hard_negative_weight,
            duplicates=duplicates,
            rows=mine,
        )

    def labelled_loss(self, pairs: torch.Tensor, labels: torch.Tensor | None, input_ids: torch.Tensor) -> torch.Tensor:
        """Compute the loss of labelled pairs `(N, 2, H)`, or of triplets `(N, 3, H)` without labels.

        It is `nli_loss`, or with `nli_objective="contrastive"` that of supervised SimCSE (eq. 5), whatever the method.
        """
        if self.config.nli_objective == "contrastive":
            share = ForContrastiveLearning.objective(self, *gather_rows(pairs), self.duplicates(input_ids))
            return sum_over_processes(share)
        return nli_loss(self.nli_classifier, pairs, labels)

    def gather_ranked(self, embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, slice]:
        """Return the two ranked views of all processes' sentences, `(b, H)` each, and this process's rows."""
        everyone, mine = gather_rows(torch.stack([embeddings[:, view] for view in self.ranked_views], 1))
        anchors, others = everyone.unbind(1)
        return anchors, others, mine

    def rank_loss(self, embeddings: torch.Tensor, teacher_vectors: torch.Tensor | None) -> torch.Tensor:
        """Return the loss of rank distillation over the sentences of all processes, see `rank_distillation`.

        Args:
            embeddings: `(B, V, H)`, of this process's sentences that count. `ranked_views` names the two to compare.
            teacher_vectors: `(B or more, K)`, without gradients.
        """
        if teacher_vectors is None:
            raise ValueError(
                "rank_weight: needs the vectors of a teacher; give --teachers DIR, written by `csezoo encode`"
            )
        anchors, others, mine = self.gather_ranked(embeddings)
        teachers, _ = gather_rows(teacher_vectors[: len(embeddings)])
        share = rank_distillation(
            anchors,
            others,
            teachers,
            loss=self.config.rank_loss,
            temperature=self.config.rank_temperature,
            teacher_temperature=self.config.teacher_temperature,
            rows=mine,
        )
        return sum_over_processes(share)

    def rank_consistency_loss(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the loss of two views over the sentences of all processes, see `rank_consistency`."""
        anchors, others, mine = self.gather_ranked(embeddings)
        return sum_over_processes(rank_consistency(anchors, others, temperature=self.config.temperature, rows=mine))

    def maskable(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return which tokens may be masked, in the shape of `input_ids`: real tokens that are not special."""
        if self.config.special_token_ids is None or self.config.mask_token_id is None:
            raise ValueError("special_token_ids, mask_token_id: not set; give the configuration the tokenizer's ids")
        special = tensor_on(input_ids.device, self.config.special_token_ids)
        return attention_mask.bool() & ~torch.isin(input_ids, special)

    def matryoshka_losses(
        self, input_ids: torch.Tensor, pooled: torch.Tensor, embeddings: torch.Tensor
    ) -> dict[str, tuple[float, torch.Tensor]]:
        r"""Return the method's contrastive loss on the first dimensions of the served vectors, with its weight.

        With the served vectors :math:`F`, the widths m of `matryoshka_dims` and their weights c, these losses add

        .. math:: \sum_m c_m L(W^{(m)} F_{1:m})

        to the loss of the complete vectors (eq. 1 of the paper, whose L is a classifier's). W is the projection that
        is dropped at test. It is shared by all widths, and :math:`W^{(m)}` is its part for the first m dimensions
        (MRL-E in the paper). If the projection is served, or there is none, the loss compares :math:`F_{1:m}`
        directly. `MatryoshkaLoss` of sentence-transformers also lists the complete width. Here it has
        `contrastive_weight`.

        Args:
            input_ids: `(B, V, T)`, of this process's sentences that count.
            pooled, embeddings: `(B, V, H)`, their vectors before and after the projection.

        Returns:
            A loss and its weight for each width, by the names `matryoshka_64`, ...; empty without `matryoshka_dims`.

        References:
            Kusupati et al. 2022, "Matryoshka Representation Learning", section 3.

        Example:
            >>> from transformers import BertConfig
            >>> from csezoo.modeling import SimCSEConfig, SimCSEForContrastiveLearning
            >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
            >>> config = SimCSEConfig(backbone_config=tiny, matryoshka_dims=[2, 4], matryoshka_weights=[0.5, 1.0])
            >>> ids = torch.randint(9, (3, 2, 6))
            >>> list(SimCSEForContrastiveLearning(config)(input_ids=ids).losses)
            ['contrastive', 'matryoshka_2', 'matryoshka_4']
        """
        dims = self.config.matryoshka_dims or []
        duplicates = self.duplicates(input_ids) if dims else None
        losses = {}
        for dim, weight in zip(dims, self.config.matryoshka_weights or [1.0] * len(dims), strict=True):
            if self.config.projection_at_test:
                short = embeddings[..., :dim]
            else:
                short = self.project(F.pad(pooled[..., :dim], (0, pooled.shape[-1] - dim)))
            losses[f"matryoshka_{dim}"] = (weight, self.contrastive_loss(short, duplicates))
        return losses

    def weight_losses(self) -> dict[str, tuple[float, torch.Tensor]]:
        """Auxiliary seam: return named losses of the weights alone, each with its weight."""
        return {}

    def auxiliary_losses(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, pooled: torch.Tensor, embeddings: torch.Tensor
    ) -> dict[str, tuple[float, torch.Tensor]]:
        """Auxiliary seam: return named losses, each with its weight.

        Args:
            input_ids, attention_mask: `(B, V, T)`, with the views beyond `encoded_views` of the configuration.
            pooled, embeddings: the vectors before and after the projection, only of the sentences that count.
        """
        losses = self.matryoshka_losses(input_ids[: len(pooled)], pooled, embeddings)
        if self.config.mlm_weight == 0:
            return losses
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
        vectors, labels = chosen_tokens(outputs.last_hidden_state, labels)
        logits = self.lm_head(vectors, self.get_input_embeddings().weight)
        return {**losses, "mlm": (self.config.mlm_weight, masked_lm_loss(logits, labels))}
