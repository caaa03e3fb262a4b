"""PromptBERT's template denoising: subtract the vector of the template without a sentence."""

from collections.abc import Callable, Sequence

import torch

from ..serving.pooling_csezoo import BackboneOutput, pool_mask_token
from .devices import tensor_on


def template_bias(
    backbone: Callable[..., BackboneOutput],
    token_ids: Sequence[list[int]],
    longest: int,
    *,
    mask_token_id: int,
    position_offset: int = 0,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return the mask token's vector of a template without a sentence, for each length of a sentence.

    For length k the template is encoded alone, without padding and attending to all tokens. The tokens before the
    sentence slot have positions 0, 1, …. The positions of the tokens after it are increased by k, as if there were a
    sentence of k tokens. The backbone stays in training or evaluation mode (in training, each length has different
    dropout), and gradients flow through the bias.

    Args:
        backbone: an encoder that accepts `input_ids`, `attention_mask`, `position_ids`.
        token_ids: the template's ids before and after the sentence slot, with special tokens.
        longest: tokens of the longest sentence, without the template.
        mask_token_id: marks the place of the sentence vector in the template.
        position_offset: position id of the first token. The release counts from 0 for RoBERTa too, although its real
            inputs start at 2; set 2 to count like the real inputs.
        device: of the backbone.

    Returns:
        `(longest + 1, H)`.

    References:
        Jiang et al. 2022, "PromptBERT: Improving BERT Sentence Embeddings with Prompts", on template denoising.
    """
    before, after = token_ids
    lengths = torch.arange(longest + 1, device=device)[:, None]  # (K, 1)
    input_ids = tensor_on(device, before + after).expand(longest + 1, -1)  # (K, L)
    slot = torch.arange(len(before) + len(after), device=device)  # (L,)
    position_ids = position_offset + slot + lengths * (slot >= len(before))  # (K, L)
    hidden = backbone(
        input_ids=input_ids, attention_mask=torch.ones_like(input_ids), position_ids=position_ids
    ).last_hidden_state
    return pool_mask_token(hidden, input_ids, mask_token_id)
