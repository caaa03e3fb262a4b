"""PromptBERT's template denoising: what the template says without a sentence is subtracted from what it says with."""

from collections.abc import Callable, Sequence

import torch

from .pooling import BackboneOutput, pool_mask_token


def template_bias(
    backbone: Callable[..., BackboneOutput],
    token_ids: Sequence[list[int]],
    sentence_lengths: torch.Tensor,
    *,
    longest: int,
    mask_token_id: int,
    position_offset: int = 0,
) -> torch.Tensor:
    """The mask token's vector for a template that holds no sentence, one for each sentence length.

    For length k the template is encoded alone, without padding and with all tokens attended; the tokens before the
    sentence slot keep positions 0, 1, …, the tokens after it get theirs increased by k, so that they stand where they
    stand with a sentence of k tokens. The bias is computed in the backbone's own mode (dropout draws of its own in
    training) and gradients flow through it.

    Args:
        backbone: an encoder taking `input_ids`, `attention_mask`, `position_ids`.
        token_ids: the template's ids before and after the sentence slot, special tokens included.
        sentence_lengths: `(n,)`, tokens of each sentence without the template.
        longest: an upper bound of `sentence_lengths`; one row a length from 0 to `longest` is encoded.
        mask_token_id: the template's slot for the sentence vector.
        position_offset: the first token's position id. The release counts from 0 for RoBERTa too, whose real inputs
            start at 2; give 2 to count as the real inputs do.

    Returns:
        `(n, H)`.

    References:
        Jiang et al. 2022, "PromptBERT: Improving BERT Sentence Embeddings with Prompts", on template denoising.
    """
    before, after = token_ids
    device = sentence_lengths.device
    lengths = torch.arange(longest + 1, device=device)[:, None]  # (K, 1)
    input_ids = torch.tensor(before + after, device=device).expand(longest + 1, -1)  # (K, L)
    slot = torch.arange(len(before) + len(after), device=device)  # (L,)
    position_ids = position_offset + slot + lengths * (slot >= len(before))  # (K, L)
    hidden = backbone(
        input_ids=input_ids, attention_mask=torch.ones_like(input_ids), position_ids=position_ids
    ).last_hidden_state
    return pool_mask_token(hidden, input_ids, mask_token_id)[sentence_lengths]
