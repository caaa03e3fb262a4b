r"""L2P-CSR: views weakened by adversarial masks on tokens and features.

The output :math:`E^{(l)}` of the embedding layer and of the first Transformer layers is multiplied by a mask. It
halves weakened tokens and weakened features, and sets to 0 what is both (eq. 1 to 3):

.. math:: \tilde E^{(l)} = E^{(l)} \odot M^{(l)}, \quad
          M^{(l)}_{ij} = \tfrac{1}{2} \left(\alpha^t_i + \alpha^f_j\right), \quad \alpha = [p \ge \phi]

The probabilities p of *not* being weakened start random in every batch, p ~ U(0, 1). A few steps then increase the
contrastive loss, along its gradient at the masks (eq. 4 to 8):

.. math:: p \leftarrow \Pi_{[0, 1]}\left(p + \beta\, g / \lVert g \rVert_2\right), \quad
          g = \nabla_{\alpha} L_{CL}(\tilde h, \tilde h^+)

Then the encoder is updated once with the final masks. Each view of a sentence has its own masks. In every step all
views go through the encoder in one forward pass, with new dropout.

References:
    Zhou, Zhou, Zhao, Wen 2023, "Learning to Perturb for Contrastive Learning of Unsupervised Sentence
    Representations". Where the release differs, `L2PCSRConfig` describes the difference and has a key for it. Eq. 9,
    the loss, is printed without its minus sign and without the positive in the denominator. Here it is the
    cross-entropy that the text describes, that of SimCSE.

Relations:
    With `threshold=0` it is SimCSE. The masks increase the same loss that training decreases, with any objective. It
    therefore combines with every method that does not change the views, and with a prompt.
"""

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ...contrastive.distributed import equal_draw, gather_rows, number_of_each
from ...contrastive.packing import Packing
from ...contrastive.perturbations import Perturbation, perturbed
from ...contrastive.sentence_encoder import SentenceEncoderModel
from ...contrastive.training_model import ForContrastiveLearning
from .configuration import L2PCSRConfig

# The inner steps use only the direction of a gradient. In half precision small gradients would become 0; scaling by a
# power of two avoids that without rounding.
GRADIENT_SCALE = 2.0**10


def weakening_mask(
    token_probability: torch.Tensor, feature_probability: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Return the factors of a layer's output (eq. 1, 2): 1, 1/2 if token or feature is weakened, 0 if both are.

    Args:
        token_probability: `(B, T)`, probability of each token not to be weakened.
        feature_probability: `(B, H)`, or `(1, H)` for all rows, probability of each feature not to be weakened.
        threshold: φ; probabilities of at least φ are not weakened (in the release: above φ).

    Returns:
        `(B, T, H)` with values 0, 1/2 and 1.

    Example:
        >>> weakening_mask(torch.tensor([[0.9, 0.0]]), torch.tensor([[0.0, 0.05, 0.9]]), 0.05)
        tensor([[[0.5000, 1.0000, 1.0000],
                 [0.0000, 0.5000, 0.5000]]])
    """
    token, feature = _halves(_bits(token_probability, threshold), _bits(feature_probability, threshold))
    return token + feature


def ascend(probability: torch.Tensor, gradient: torch.Tensor, *, step_size: float, mode: str = "l2") -> torch.Tensor:
    """Take one step of gradient ascent over the last dimension, clipped to [0, 1] (eq. 5 and 6).

    Args:
        probability, gradient: `(…, n)`.
        step_size: β.
        mode: `l2` makes a step of this length before clipping, and none if the gradient is zero. `sign` moves every
            element by the step size. An element whose gradient is exactly zero then becomes 1, because the release
            divides it by its absolute value and replaces nan by 1.

    Example:
        >>> ascend(torch.tensor([0.5, 0.5]), torch.tensor([3.0, -4.0]), step_size=0.5)
        tensor([0.8000, 0.1000])
        >>> ascend(torch.tensor([0.5, 0.5, 0.5]), torch.tensor([3.0, -4.0, 0.0]), step_size=0.1, mode="sign")
        tensor([0.6000, 0.4000, 1.0000])
    """
    if mode == "l2":
        moved = probability + step_size * _unit(gradient)
    elif mode == "sign":
        moved = torch.where(gradient == 0, 1.0, probability + step_size * gradient.sign())
    else:
        raise ValueError(f"mode: {mode!r} must be one of l2, sign")
    return moved.clamp(0, 1)


def _bits(probability: torch.Tensor, threshold: float) -> torch.Tensor:
    return (probability >= threshold).to(probability.dtype)


def _halves(token: torch.Tensor, feature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # Their sum is the mask (eq. 3).
    return token.unsqueeze(-1) / 2, feature.unsqueeze(-2) / 2


def _unit(gradient: torch.Tensor) -> torch.Tensor:
    """Scale to length 1 over the last dimension; zero stays zero, and so does what has overflowed."""
    gradient = torch.where(gradient.isfinite().all(-1, keepdim=True), gradient, 0)
    # Divide by the largest element first, because the squares of small numbers become 0.
    gradient = gradient / _or_one(gradient.abs().amax(-1, keepdim=True))
    return gradient / _or_one(torch.linalg.vector_norm(gradient, dim=-1, keepdim=True))


def _or_one(size: torch.Tensor) -> torch.Tensor:
    return torch.where(size > 0, size, 1)


def _multiply(
    token: torch.Tensor, feature: torch.Tensor, hidden: torch.Tensor, packing: Packing | None
) -> torch.Tensor:
    token, feature = _halves(token, feature)  # (R or 1, T or 1, 1) and (R or 1, 1, H or 1)
    if packing is not None:
        token = packing.pack(token.expand(*packing.shape, 1))
        feature = feature.expand(packing.shape[0], -1, -1)[packing.rows].transpose(0, 1)
    return hidden * (token + feature).to(hidden.dtype)


def _weakened(*states: Any) -> torch.Tensor:
    # The factors are as large as the layer's output. They are computed again in the backward pass, and not kept.
    return cast(torch.Tensor, checkpoint(_multiply, *states, use_reentrant=False, preserve_rng_state=False))


def _add(noise: torch.Tensor, hidden: torch.Tensor, packing: Packing | None) -> torch.Tensor:
    noise = noise if packing is None else packing.pack(noise)
    return hidden + noise.to(hidden.dtype)


class L2PCSRModel(SentenceEncoderModel):
    """The encoder that an L2P-CSR checkpoint serves. Nothing is weakened at test."""

    config_class = L2PCSRConfig


class L2PCSRForContrastiveLearning(ForContrastiveLearning):
    """The training model of L2P-CSR.

    In training mode the views of a batch are weakened with masks learned in `inner_steps` forward passes. Evaluation
    mode, a prompt's bias, the auxiliary losses and labelled pairs are never weakened.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = L2PCSRForContrastiveLearning(L2PCSRConfig(backbone_config=tiny))
        >>> ids = torch.tensor([[[1, 2], [1, 2]], [[3, 4], [3, 4]]])  # 2 sentences, 2 views, 2 tokens
        >>> learned = model.learn_weakening(ids, torch.ones_like(ids))
        >>> learned["token"].shape, learned["feature"].shape  # 3 layers, 4 rows
        (torch.Size([3, 4, 2]), torch.Size([3, 4, 8]))
    """

    config_class = L2PCSRConfig
    serving_class = L2PCSRModel
    seams = ("views",)

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        if not self.training:
            return super().pool_views(input_ids, attention_mask, rows)
        if self.config.attend_padding:  # pad to the same length on every process, so that the masks have one size
            more = max(number_of_each(input_ids.shape[-1])) - input_ids.shape[-1]
            input_ids = F.pad(input_ids, (0, more), value=self.config.backbone_config.pad_token_id)
            attention_mask = F.pad(attention_mask, (0, more))
        learned = self.learn_weakening(input_ids, attention_mask, rows)
        return self._perturbed_views(self.masks(learned), input_ids, attention_mask)

    def learn_views(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        self.learn_weakening(input_ids, attention_mask)

    def learned_token_masks(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        masks = self.masks(self.learn_weakening(input_ids, attention_mask))["token"]
        return 1 - masks.unflatten(1, input_ids.shape[:2])

    @torch.enable_grad()  # needed even if the caller computes no gradients
    def learn_weakening(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Learn the masks of a batch by the inner maximisation (algorithm 1, lines 4 to 13).

        It runs in the model's current mode and computes gradients only at the masks. Gradients of parameters and
        running statistics of batch norms do not change. The loss is over the sentences of all processes, so that all
        must call this.

        Args:
            input_ids, attention_mask: `(B, V, T)`.
            rows: how many leading sentences count in the loss.

        Returns:
            The probabilities of not being weakened, from which `masks` makes masks: `token` `(K, R, T)` and `feature`
            `(K, R, H)` (`(K, 1, H)` if shared), with K weakened layers and R = B·V rows, where the views of a sentence
            are adjacent. Masks that the configuration turns off are left out. `noise` weakening returns only `noise`
            `(R, T, H)`.
        """
        learned = self.initial_probabilities(input_ids, attention_mask)
        duplicates = self.duplicates(input_ids[:rows])
        buffers = [(buffer, buffer.clone()) for buffer in self.buffers()]
        for _ in range(self.config.inner_steps):
            masks = {name: mask.detach().requires_grad_() for name, mask in self.masks(learned).items()}
            pooled = self._perturbed_views(masks, input_ids, attention_mask)[:rows]
            loss = self.contrastive_loss(self.project(pooled), duplicates)
            gradients = torch.autograd.grad(GRADIENT_SCALE * loss, list(masks.values()))
            learned = self._ascended(learned, dict(zip(masks, gradients, strict=True)))
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        return learned

    def initial_probabilities(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Draw the initial probabilities of a batch from U(0, 1) (eq. 4), in the shapes of `learn_weakening`.

        Noise starts in a random direction with the largest norm, on the real tokens.
        """
        config = self.config
        layers, hidden_size = config.weakened_layers, config.hidden_size
        tokens, rows = input_ids.shape[-1], input_ids.shape[:-1].numel()
        options: dict[str, Any] = {"device": input_ids.device, "dtype": torch.promote_types(self.dtype, torch.float32)}
        if config.weakening == "noise":
            noise = torch.randn(rows, tokens, hidden_size, **options) * attention_mask.flatten(0, 1).unsqueeze(-1)
            return {"noise": config.noise_size * _unit(noise.flatten(1)).view_as(noise)}
        initial = {}
        if config.token_mask:
            initial["token"] = torch.rand(layers, rows, tokens, **options)
        if config.feature_mask:
            shared = config.feature_mask_scope == "shared"
            feature = torch.rand(layers, 1 if shared else rows, hidden_size, **options)
            initial["feature"] = equal_draw(feature) if shared else feature
        return initial

    def masks(self, learned: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the masks for the views: zeros and ones (eq. 1), or the learned values for other weakenings."""
        if self.config.weakening != "binary":
            return learned
        return {name: _bits(probability, self.config.threshold) for name, probability in learned.items()}

    def _ascended(
        self, learned: dict[str, torch.Tensor], gradients: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        config = self.config
        if config.weakening == "noise":
            # Eq. 5 with a ball instead of [0, 1], as in virtual adversarial training with projected gradients.
            noise = learned["noise"].flatten(1)
            noise = noise + config.noise_size * _unit(gradients["noise"].flatten(1))
            longest = torch.linalg.vector_norm(noise, dim=1, keepdim=True).clamp(min=config.noise_size)
            noise = noise * config.noise_size / _or_one(longest)
            return {"noise": noise.view_as(learned["noise"])}
        if config.feature_mask and config.feature_mask_scope == "shared":
            gradients["feature"] = gather_rows(gradients["feature"].unsqueeze(0))[0].sum(0)
        steps: dict[str, dict[str, Any]] = {
            "token": {"step_size": config.token_step_size, "mode": config.token_update},
            "feature": {"step_size": config.feature_step_size},
        }
        return {name: ascend(learned[name], gradients[name], **steps[name]) for name in learned}

    def _perturbed_views(
        self, masks: dict[str, torch.Tensor], input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Encode the views with these masks, all in one forward pass."""
        if self.config.weakening == "noise":
            perturbations: list[Perturbation] = [partial(_add, masks["noise"])]
        else:
            absent = torch.ones(self.config.weakened_layers, 1, 1, device=input_ids.device)
            layers = zip(masks.get("token", absent), masks.get("feature", absent), strict=True)
            perturbations = [partial(_weakened, token, feature) for token, feature in layers]
        attended = torch.ones_like(attention_mask) if self.config.attend_padding else attention_mask
        every_layer = len(perturbations) > self.config.num_hidden_layers  # the mask of the last one is for all tokens
        with perturbed(self.model.backbone, perturbations):
            pooled = self.pool_rows(input_ids, attended, pooled_only=not every_layer)
        return self.denoised(pooled, input_ids, attention_mask)
