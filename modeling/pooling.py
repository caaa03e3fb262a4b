"""From token vectors to one sentence vector, and the projections on top of it."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_sentence_encoder import SentenceEncoderConfig
from .distributed import gather_rows


class BackboneOutput(Protocol):
    """What every backbone returns, where transformers' own types say None is possible.

    Args:
        last_hidden_state: `(B, T, H)`.
        hidden_states: of the embedding layer and of every layer, `(B, T, H)` each, on request.
        attentions: of every layer, `(B, heads, T, T)` each, on request.
    """

    last_hidden_state: torch.Tensor
    hidden_states: tuple[torch.Tensor, ...] | None
    attentions: tuple[torch.Tensor, ...] | None


def _mean(hidden_state: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    mask = attention_mask.unsqueeze(-1).to(hidden_state.dtype)  # (B, T, 1)
    return (hidden_state * mask).sum(1) / mask.sum(1).clamp(min=1)


def pool(hidden_states: tuple[torch.Tensor, ...], attention_mask: torch.Tensor, mode: str) -> torch.Tensor:
    """Pool the token vectors of a batch to one vector a sentence.

    Args:
        hidden_states: tuple of `(B, T, H)`, the embedding layer's output first (as `output_hidden_states` gives it).
        attention_mask: `(B, T)`, 1 for real tokens.
        mode: `cls` the first token of the last layer; `mean`, `max` over the real tokens of the last layer, special
            tokens included; `first_last_mean` the mean over tokens of the average of the first Transformer layer's and
            the last layer's output (as SimCSE's release does today; some forks take the embedding layer for the
            first); `last2_mean` the same with the last two layers.

    Returns:
        `(B, H)`.

    Example:
        >>> tokens = torch.tensor([[[1.0], [3.0], [9.0]]])
        >>> pool((tokens,), torch.tensor([[1, 1, 0]]), "mean")
        tensor([[2.]])
    """
    last = hidden_states[-1]
    if mode == "cls":
        return last[:, 0]
    if mode == "mean":
        return _mean(last, attention_mask)
    if mode == "max":
        return last.masked_fill(attention_mask.unsqueeze(-1) == 0, torch.finfo(last.dtype).min).amax(1)
    if mode == "first_last_mean":
        return _mean((hidden_states[1] + last) / 2, attention_mask)
    if mode == "last2_mean":
        return _mean((hidden_states[-2] + last) / 2, attention_mask)
    raise ValueError(f"pooling {mode!r} is none of cls, mean, max, first_last_mean, last2_mean")


def pool_mask_token(last_hidden_state: torch.Tensor, input_ids: torch.Tensor, mask_token_id: int) -> torch.Tensor:
    """The vector at the template's mask token (PromptBERT): the last one in the row, as the template ends with it.

    Args:
        last_hidden_state: `(B, T, H)`.
        input_ids: `(B, T)`; a row without `mask_token_id` gives the first token's vector, see `require_mask_token`.

    Returns:
        `(B, H)`.

    Example:
        >>> hidden = torch.arange(4.0).view(1, 4, 1)
        >>> pool_mask_token(hidden, torch.tensor([[5, 103, 103, 7]]), 103)
        tensor([[2.]])
    """
    positions = torch.arange(input_ids.shape[1], device=input_ids.device)
    last = torch.where(input_ids == mask_token_id, positions, 0).amax(1)  # (B,)
    return last_hidden_state[torch.arange(len(last), device=last.device), last]


def require_mask_token(input_ids: torch.Tensor, mask_token_id: int) -> None:
    """Raise where a row holds no mask token: it was not tokenised with the prompt template."""
    if not (input_ids == mask_token_id).any(1).all():
        raise ValueError(
            "prompt pooling found a row without the mask token: tokenise with the tokenizer saved beside this model "
            "(AutoTokenizer.from_pretrained of the same repository), which adds the template"
        )


class TanhProjection(nn.Module):
    """z = tanh(W h + b), W square: the MLP of SimCSE ("[CLS] with MLP"). `(…, H) -> (…, H)`.

    Example:
        >>> TanhProjection(4)(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(vectors))


class _BatchNorm(nn.BatchNorm1d):
    """Batch norm whose statistics span all processes, so that two processes train as one."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(rows)
        everyone, own = gather_rows(rows)
        return super().forward(everyone)[own]


class BatchNormProjection(nn.Module):
    """Linear(H, 2H) - BatchNorm - ReLU - Linear(2H, H) - BatchNorm without affine: the projector of DiffCSE.

    No biases; statistics over all rows of all views and processes together. `(n, H) -> (n, H)`.

    Example:
        >>> BatchNormProjection(4)(torch.randn(8, 4)).mean(0).abs().max() < 1e-6
        tensor(True)
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.expand = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        self.expand_norm = _BatchNorm(2 * hidden_size)
        self.reduce = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.reduce_norm = _BatchNorm(hidden_size, affine=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.reduce_norm(self.reduce(torch.relu(self.expand_norm(self.expand(vectors)))))


class GELUProjection(nn.Module):
    """Linear(H, width) - GELU - Linear(width, width) - GELU: the head of SG-OPT (section 3.2). `(…, H) -> (…, width)`.

    Example:
        >>> GELUProjection(4, 16)(torch.zeros(2, 4)).shape
        torch.Size([2, 16])
    """

    def __init__(self, hidden_size: int, width: int):
        super().__init__()
        self.expand = nn.Linear(hidden_size, width)
        self.mix = nn.Linear(width, width)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.mix(F.gelu(self.expand(vectors))))


def build_projection(config: SentenceEncoderConfig, *, at_test: bool) -> nn.Module:
    """The projection a configuration names, on the side where it belongs: elsewhere, and for `none`, the identity.

    Args:
        at_test: whether the serving model asks.

    Example:
        >>> from csezoo.modeling import SimCSEConfig
        >>> config = SimCSEConfig(projection="tanh", projection_at_test=False)
        >>> build_projection(config, at_test=True)
        Identity()
    """
    if config.projection == "none" or config.projection_at_test != at_test:
        return nn.Identity()
    if config.projection == "gelu":
        return GELUProjection(config.hidden_size, config.projection_size)
    return {"tanh": TanhProjection, "batchnorm": BatchNormProjection}[config.projection](config.hidden_size)
