r"""DiffCSE: sentence vectors from which a discriminator can tell what was edited in the sentence.

A frozen masked language model G edits each view of a sentence. A discriminator D, a second copy of the pre-trained
encoder, predicts for each token whether it was changed. D reads the sentence vector z instead of [CLS] (section 3):

.. math:: L = L_{\text{contrast}} + \lambda L_{\text{RTD}}, \qquad
          L_{\text{RTD}} = -\frac{1}{N} \sum_{i,t} \log D_{y_{it}}(x''_i, z_i, t), \quad
          y_{it} = [x''_{it} \ne x_{it}], \quad x'' = G(\text{mask}(x))

The gradient of D reaches the encoder through z. The contrastive loss makes z invariant to dropout, the second term
makes it sensitive to edits. D, G and the projection are dropped at test.

References:
    Chuang et al. 2022, "DiffCSE: Difference-based Contrastive Learning for Sentence Embeddings", NAACL. Where its
    release differs, this follows the release: the discriminator's loss is a mean over all positions, with padding
    (paper: a sum over tokens); G replaces every token by its best guess (abstract: by a sample; section 3: only the
    masked tokens), with dropout on; padding becomes id 0, which is `<s>` for RoBERTa, hidden by the attention mask.

Relations:
    With `rtd_weight` 0 it is SimCSE with the same projection. ELECTRA (Clark et al. 2020) has no conditioning on a
    vector, and trains the generator too.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel

from ...contrastive.backbones import embedding_output, longest_input
from ...contrastive.distributed import gather_rows, number_of_each
from ...contrastive.masked_language_modeling import (
    MaskedLMHead,
    MaskedLMTransform,
    chosen_tokens,
    mask_tokens,
    masked_lm_loss,
)
from ...contrastive.mini_batches import in_mini_batches
from ...contrastive.packing import packed
from ...contrastive.sentence_encoder import SentenceEncoderModel, new_encoder
from ...contrastive.training_model import ContrastiveLearningOutput, ForContrastiveLearning
from ...objectives import at_least_float32, replaced_token_detection
from .configuration import DiffCSEConfig
from .editing import delete_tokens, insert_masks


class DiffCSEModel(SentenceEncoderModel):
    """The encoder that a DiffCSE checkpoint serves: the backbone's [CLS] vector, without the projection."""

    config_class = DiffCSEConfig
    training_heads = SentenceEncoderModel.training_heads + (
        "discriminator",
        "discriminator_head",
        "discriminator_lm_head",
        "generator",
    )


class DiscriminatorHead(nn.Linear):
    """Maps token vectors to scores (kept, changed). As in the release, it has torch's initialisation."""


class DiffCSEForContrastiveLearning(ForContrastiveLearning):
    """The training model of DiffCSE.

    The generator is frozen. It is in a training checkpoint, but not in a published repository: after loading that, set
    `generator`.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> config = DiffCSEConfig(backbone_config=tiny, mask_token_id=8, special_token_ids=[0, 1, 2, 8])
        >>> model = DiffCSEForContrastiveLearning(config)
        >>> ids = torch.tensor([[[1, 3, 2], [1, 3, 2]], [[1, 4, 2], [1, 4, 2]]])  # 2 sentences, 2 views, 3 tokens
        >>> list(model(input_ids=ids, attention_mask=torch.ones_like(ids)).losses)
        ['contrastive', 'rtd']
    """

    config_class = DiffCSEConfig
    serving_class = DiffCSEModel
    seams = ("auxiliary",)

    def __init__(self, config: DiffCSEConfig):
        super().__init__(config)
        if config.rtd_weight > 0:
            backbone = config.backbone_config
            self.discriminator = new_encoder(backbone)
            if config.prediction != "masked_lm":  # two scores per token for each edit
                self.discriminator_head = DiscriminatorHead(backbone.hidden_size, 2 * len(config.edits))
            if config.prediction != "rtd":
                self.discriminator_lm_head = MaskedLMHead(self.discriminator)
        if config.needs_generator:
            self.generator = AutoModelForMaskedLM.from_config(config.generator_config or config.backbone_config)
        self.post_init()
        self.train()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, DiscriminatorHead):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    def encoders(self) -> list[PreTrainedModel]:
        return super().encoders() + ([self.discriminator] if self.config.rtd_weight > 0 else [])

    def masked_lm_heads(self) -> dict[str, MaskedLMTransform]:
        predicts_tokens = self.config.rtd_weight > 0 and self.config.prediction != "rtd"
        return super().masked_lm_heads() | ({"prediction": self.discriminator_lm_head} if predicts_tokens else {})

    def train(self, mode: bool = True) -> "DiffCSEForContrastiveLearning":
        super().train(mode)
        if self.config.needs_generator:
            # Never trained. Frozen here, because loading unfreezes it.
            self.generator.requires_grad_(False).train(mode and self.config.generator_dropout)
        return self

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *others: Any,
        **named: Any,
    ) -> ContrastiveLearningOutput:
        """Compute the losses. With an `edited_view`, an edit of the first view is added as the last view."""
        if input_ids is not None and self.config.edited_view != "none":
            attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            edited, mask, _ = self.edit(self.config.edit, input_ids[:, 0], attention_mask[:, 0])
            longest = max(edited.shape[1], input_ids.shape[2])
            input_ids = torch.cat([_widen(input_ids, longest), _widen(edited, longest)[:, None]], dim=1)
            attention_mask = torch.cat([_widen(attention_mask, longest), _widen(mask, longest)[:, None]], dim=1)
        return super().forward(input_ids, attention_mask, *others, **named)

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the contrastive loss. An edited positive adds a second loss, and the result is their mean.

        An edited negative is a hard negative. The paper has these two ablations (table 15) without an equation.
        """
        if self.config.edited_view != "positive":
            return super().contrastive_loss(embeddings, duplicates)
        pairs = (embeddings[:, :2], embeddings[:, 0::2])
        losses = [super(DiffCSEForContrastiveLearning, self).contrastive_loss(pair, duplicates) for pair in pairs]
        return cast(torch.Tensor, sum(losses)) / 2

    def auxiliary_losses(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, pooled: torch.Tensor, embeddings: torch.Tensor
    ) -> dict[str, tuple[float, torch.Tensor]]:
        """Add the discriminator's loss, the mean over the edits, with weight λ."""
        losses = super().auxiliary_losses(input_ids, attention_mask, pooled, embeddings)
        config = self.config
        if config.rtd_weight == 0:
            return losses
        vectors = embeddings if config.condition_on == "projection" else pooled  # (rows, V, H)
        rows = len(vectors)
        # Sentences that do not count have zero vectors, so that all processes run the same modules.
        vectors = F.pad(vectors, (0, 0, 0, 0, 0, len(input_ids) - rows))
        if config.edited_view != "none":
            vectors = vectors[:, :-1]
        views = vectors.shape[1]
        texts = [(input_ids[:, :views], attention_mask[:, :views])]
        if config.predicted_sentence != "same":
            following = (input_ids[:, views:].expand(-1, views, -1), attention_mask[:, views:].expand(-1, views, -1))
            texts = [following] if config.predicted_sentence == "next" else [*texts, following]
        input_ids, attention_mask = (torch.cat(parts, dim=1).flatten(0, 1) for parts in zip(*texts, strict=True))
        vectors = vectors.repeat(1, len(texts), 1).flatten(0, 1)
        batch = (input_ids, attention_mask, vectors, rows * views * len(texts))
        if config.prediction == "rtd":
            values = [self.edit_detection(number, edit, *batch) for number, edit in enumerate(config.edits)]
            return {**losses, "rtd": (config.rtd_weight, cast(torch.Tensor, sum(values)) / len(values))}
        return {**losses, config.prediction: (config.rtd_weight, self.recovery(*batch))}

    def edit_detection(
        self,
        number: int,
        edit: str,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        vectors: torch.Tensor,
        rows: int,
    ) -> torch.Tensor:
        """Compute the detection loss over the first `rows` rows of all processes, padded as one batch.

        Args:
            number: index of the edit among the scores of the head.
            input_ids, attention_mask: `(N, T)`.
            vectors: `(N, H)`, the vector that conditions each row.
        """
        edited, mask, labels = self.edit(edit, input_ids, attention_mask)
        longest = max(number_of_each(edited.shape[1]))
        edited, mask, labels = _widen(edited, longest), _widen(mask, longest), _widen(labels, longest)
        scores = self.discriminator_head(self.discriminate(edited, mask, vectors))  # (N, T, 2 x edits)
        scores = scores[..., 2 * number : 2 * number + 2]
        local = torch.cat([scores, labels.to(scores.dtype)[..., None], mask.to(scores.dtype)[..., None]], dim=-1)
        everyone, _ = gather_rows(local[:rows])
        return replaced_token_detection(
            everyone[..., :2], everyone[..., 2], everyone[..., 3], reduction=self.config.rtd_reduction
        )

    def recovery(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, vectors: torch.Tensor, rows: int
    ) -> torch.Tensor:
        """Compute the cross-entropy of the original tokens, given an edit of them and the sentence vector.

        `masked_lm` (Yang et al. 2020, the mean over masked tokens) reads the masked sentence. `corrective_lm` (Meng et
        al. 2021) reads the generator's sentence. With c the probability that a token was kept and q a distribution
        over the vocabulary, the probability of the original token is (1 - c) q(x) + c [x'' = x]. The paper does not
        say the following, so it was decided here: the mean is over all real tokens but the first, and c has no
        separate loss.
        """
        masked, labels = self.mask(input_ids, attention_mask)
        if self.config.prediction == "corrective_lm":
            masked = self.replace(input_ids, attention_mask)
            labels = input_ids.where(attention_mask.bool(), -100)
            labels[:, 0] = -100
        labels[rows:] = -100
        hidden = self.discriminate(masked, attention_mask, vectors)
        if self.config.prediction == "masked_lm":
            hidden, labels = chosen_tokens(hidden, labels)
        logits = self.discriminator_lm_head(hidden, self.discriminator.get_input_embeddings().weight)
        if self.config.prediction == "corrective_lm":
            logits = corrective_log_probabilities(logits, self.discriminator_head(hidden), masked)
        return masked_lm_loss(logits, labels)

    def discriminate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, vectors: torch.Tensor
    ) -> torch.Tensor:
        """Return the token vectors `(N, T, H)` of D, with `vectors` `(N, H)` as the embedding of the first token.

        They replace the embedding layer's output, after its LayerNorm and dropout, so that no position is added.
        """

        def read(input_ids: torch.Tensor, attention_mask: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
            def condition(module: nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
                return torch.cat([vectors[:, None].to(output.dtype), output[:, 1:]], dim=1)

            # The mean over all positions also reads the vectors at padding.
            padded = self.config.prediction == "rtd" and self.config.rtd_reduction == "mean"
            with embedding_output(self.discriminator).register_forward_hook(condition):
                packing = self.packing(self.discriminator, attention_mask, padded=padded)
                with packed(self.discriminator, attention_mask, packing) as discriminator:
                    hidden = discriminator(input_ids=input_ids).last_hidden_state
            return hidden if packing is None else packing.unpack(hidden)

        return in_mini_batches(read, self._rows_at_a_time, input_ids, attention_mask, vectors)

    @property
    def _rows_at_a_time(self) -> int | None:
        """Rows of `mini_batch_size` sentences with two views each."""
        return self.mini_batch_size and 2 * self.mini_batch_size

    def edit(
        self, edit: str, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Edit rows `(N, T)`, and return ids, attention mask and labels (1 at an edit), wider after insertions.

        `replace`: the label is 1 if a token differs. `insert`: mask tokens are put before a share of the tokens, and
        the generator fills them without changing the others. `delete`: the label is 1 after a deleted token. Special
        tokens, and the mask token of a template, are neither masked nor deleted. With `generator_positions` `all` the
        generator may still change every token except the first one and masks of the text (release: [SEP] is not
        restored).
        """
        if edit == "replace":
            edited = self.replace(input_ids, attention_mask)
            return edited, attention_mask, ((edited != input_ids) & attention_mask.bool()).long()
        ratio = self.config.rtd_mask_ratio
        draws = torch.rand(input_ids.shape, device=input_ids.device)
        chosen = (draws < ratio) & self.maskable(input_ids, attention_mask)
        if edit == "delete":
            return delete_tokens(input_ids, attention_mask, chosen)
        ids, mask, labels = insert_masks(input_ids, attention_mask, chosen, self.config.mask_token_id)
        longest = min(longest_input(self.model.backbone), longest_input(self.generator))
        limit = max(input_ids.shape[1], longest - self.config.prefix_positions)
        ids, mask, labels = ids[:, :limit], mask[:, :limit], labels[:, :limit]
        return self.generate(ids, mask).where(labels.bool(), ids), mask, labels

    def mask(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mask rows, and return ids and labels `(N, T)`, see `masked_language_modeling.mask_tokens`."""
        return mask_tokens(
            input_ids,
            self.maskable(input_ids, attention_mask),
            probability=self.config.rtd_mask_ratio,
            mask_token_id=self.config.mask_token_id,
            vocab_size=self.config.vocab_size,
        )

    def replace(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the generator's version of rows `(N, T)`, id 0 at padding. It keeps the first token and masks."""
        masked, labels = self.mask(input_ids, attention_mask)
        kept = input_ids == self.config.mask_token_id
        kept[:, 0] = True
        if self.config.generator_positions == "masked":
            kept |= labels == -100
        return input_ids.where(kept, self.generate(masked, attention_mask)) * attention_mask.long()

    @torch.no_grad()
    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the generator's token at every position `(N, T)`."""

        def write(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            packing = self.packing(self.generator, attention_mask)
            with packed(self.generator, attention_mask, packing) as generator:
                logits = generator(input_ids=input_ids).logits
            if self.config.generator_sampling == "argmax":
                written = logits.max(-1).indices  # the same as argmax, in a third (bf16) to half of its time on CPU
            else:
                written = torch.multinomial(logits.float().softmax(-1).flatten(0, 1), 1).view(logits.shape[:2])
            return written if packing is None else packing.unpack(written)

        return in_mini_batches(write, self._rows_at_a_time, input_ids, attention_mask)


def corrective_log_probabilities(logits: torch.Tensor, scores: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the log probabilities `(N, T, vocabulary)` of a mixture: keep the token, or predict another.

    Args:
        logits: `(N, T, vocabulary)` of the prediction.
        scores: `(N, T, 2)` of kept and changed.
        input_ids: `(N, T)`, the tokens to keep or change.

    Example:
        >>> mixed = corrective_log_probabilities(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), torch.tensor([[1]]))
        >>> mixed.exp()  # half of it is kept, a quarter each is predicted
        tensor([[[0.2500, 0.7500]]])
    """
    kept, changed = at_least_float32(scores).log_softmax(-1).split(1, dim=-1)  # (N, T, 1) each
    predicted = changed + at_least_float32(logits).log_softmax(-1)
    read = input_ids[..., None]
    return predicted.scatter(-1, read, torch.logaddexp(predicted.gather(-1, read), kept))


def _widen(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Pad rows `(…, T)` with zeros to `(…, length)`: 0 is the id, the mask and the label of padding."""
    return F.pad(rows, (0, length - rows.shape[-1]))
