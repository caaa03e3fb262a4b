"""WK pooling: weigh layers and tokens by how the vectors of a token change from layer to layer."""

import torch
import torch.nn.functional as F

LEAST = 1e-12  # of a divisor
WINDOW = 2  # layers on each side of a layer that are its context


def first_layer(layers: int) -> int:
    """Return the first layer that counts, of `layers` without the embedding layer: 4 of 12 in the release.

    Example:
        >>> [first_layer(layers) for layers in (24, 12, 6, 2)]
        [4, 4, 2, 0]
    """
    return min(4, layers // 3)


def wk_pool(hidden_states: tuple[torch.Tensor, ...], attention_mask: torch.Tensor) -> torch.Tensor:
    r"""Pool the token vectors of all layers to one vector per sentence (SBERT-WK).

    Let v_k be a token's vector in layer k, C_k the vectors of the two layers before and after it, and P the projection
    onto their span, computed by Gram-Schmidt (a QR decomposition). The weight of the layer is the sum of its alignment
    and of its novelty, each divided by its sum over the layers:

        a_k = 1 / (2 (|C_k| + 1) · mean over c in C_k of cos(c, P v_k)),   n_k = ‖v_k - P v_k‖ / ‖v_k‖

    The weight of a token is the variance over k of cos(v_k, v_{k+1}), divided by its sum over the tokens of a sentence
    without the last one, [SEP]. There is nothing to fit. As in the release, the first layer that counts is the fourth
    (an earlier one in a small encoder), and the first two layers that count have no context before them.

    Args:
        hidden_states: tuple of `(B, T, H)`, the embedding layer's output first.
        attention_mask: `(B, T)`, 1 for real tokens, padded on the right.

    Returns:
        `(B, H)`.

    References:
        Wang and Kuo 2020, "SBERT-WK: A Sentence Embedding Method by Dissecting BERT-based Word Models", section 4.

    Example:
        >>> states = tuple(torch.randn(2, 5, 8) for _ in range(4))
        >>> wk_pool(states, torch.ones(2, 5)).shape
        torch.Size([2, 8])
    """
    layers = [state.float() if state.dtype != torch.double else state for state in hidden_states]
    layers = layers[first_layer(len(layers) - 1) :]
    alignments, novelties = [], []
    for k, vector in enumerate(layers):
        before = layers[k - WINDOW : k] if k >= WINDOW else []
        context = [*before, *layers[k + 1 : k + 1 + WINDOW]]
        new = vector
        basis: list[torch.Tensor] = []
        for other in context:
            for direction in basis:
                other = other - (other * direction).sum(-1, keepdim=True) * direction
            basis.append(F.normalize(other, dim=-1))
        for direction in basis:
            new = new - (new * direction).sum(-1, keepdim=True) * direction
        aligned = torch.stack([F.cosine_similarity(other, vector - new, dim=-1) for other in context]).mean(0)
        alignments.append(1 / (2 * (len(context) + 1) * aligned))
        novelties.append(new.norm(dim=-1) / vector.norm(dim=-1).clamp(min=LEAST))
    alignment, novelty = torch.stack(alignments), torch.stack(novelties)  # (K, B, T)
    weights = alignment / alignment.sum(0) + novelty / novelty.sum(0).clamp(min=LEAST)
    tokens = (torch.stack(layers) * (weights / weights.sum(0)).unsqueeze(-1)).sum(0)  # (B, T, H)
    similar = torch.stack([F.cosine_similarity(*pair, dim=-1) for pair in zip(layers, layers[1:], strict=False)])
    counted = attention_mask * (attention_mask.flip(1).cumsum(1).flip(1) > 1)  # without the last real token
    changes = similar.var(0, correction=0) * counted
    shares = changes / changes.sum(1, keepdim=True).clamp(min=LEAST)
    return (tokens * shares.unsqueeze(-1)).sum(1).to(hidden_states[-1].dtype)
