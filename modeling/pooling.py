"""Pool token vectors to a sentence vector, and project it."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_sentence_encoder import SentenceEncoderConfig
from .distributed import gather_rows
from .wk_pooling import wk_pool

# Poolings that average two layers: the last one and this one of `hidden_states`.
OTHER_LAYER = {"first_last_mean": 1, "embeddings_last_mean": 0, "last2_mean": -2}
ALL_LAYERS = (*OTHER_LAYER, "wk")  # poolings that need more than the last layer


class BackboneOutput(Protocol):
    """The output of every backbone. The types of transformers allow None for each of them.

    Args:
        last_hidden_state: `(B, T, H)`.
        hidden_states: of the embedding layer and of every layer, `(B, T, H)` each, if requested.
        attentions: of every layer, `(B, heads, T, T)` each, if requested.
    """

    last_hidden_state: torch.Tensor
    hidden_states: tuple[torch.Tensor, ...] | None
    attentions: tuple[torch.Tensor, ...] | None


def _mean(hidden_state: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    mask = attention_mask.unsqueeze(-1).to(hidden_state.dtype)  # (B, T, 1)
    wide = torch.promote_types(hidden_state.dtype, torch.float32)  # float16 has no sum above 65,504
    total, count = (hidden_state * mask).sum(1, dtype=wide), mask.sum(1, dtype=wide)
    return (total / count.clamp(min=1)).to(hidden_state.dtype)


def last_place(marked: torch.Tensor) -> torch.Tensor:
    """Return the position of the last marked token of each row, `(B,)`, or 0 if none is marked.

    Example:
        >>> last_place(torch.tensor([[True, True, False], [False, False, False]]))
        tensor([1, 0])
    """
    return torch.where(marked, torch.arange(marked.shape[1], device=marked.device), 0).amax(1)


def token_places(
    mode: str, input_ids: torch.Tensor | None, attention_mask: torch.Tensor, mask_token_id: int
) -> torch.Tensor | None:
    """Return the position of the only token of each row whose last vector a pooling reads, `(B,)`.

    Args:
        mode: see `pool`, or `prompt`.
        input_ids: `(B, T)`, or None if the batch has embeddings instead.
        attention_mask: `(B, T)`.
        mask_token_id: of the tokenizer; only `prompt` needs it.

    Returns:
        None if the pooling reads more than one token.

    Example:
        >>> token_places("last", None, torch.tensor([[1, 1, 0], [1, 1, 1]]), 4)
        tensor([1, 2])
    """
    if mode == "cls":
        return attention_mask.new_zeros(len(attention_mask), dtype=torch.long)
    if mode == "last":
        return last_place(attention_mask > 0)
    if mode == "prompt" and input_ids is not None:
        return last_place(input_ids == mask_token_id)
    return None


def pool(hidden_states: tuple[torch.Tensor, ...], attention_mask: torch.Tensor, mode: str) -> torch.Tensor:
    """Pool the token vectors of a batch to one vector per sentence.

    Args:
        hidden_states: tuple of `(B, T, H)`, the embedding layer's output first (as with `output_hidden_states`).
        attention_mask: `(B, T)`, 1 for real tokens.
        mode: `cls`, the first token of the last layer; `mean` and `max`, over the real tokens of the last layer, with
            special tokens; `first_last_mean`, the mean over tokens of the average of the first Transformer layer and
            the last one (as in SimCSE's current release); `embeddings_last_mean`, the same with the output of the
            embedding layer as the first (as in SimCSE's first release, whose scores the papers print);
            `last2_mean`, the same with the last two layers; `last`, the last real token, whichever side is padded;
            `wk`, see `wk_pooling.wk_pool`.

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
    if mode in OTHER_LAYER:
        return _mean((hidden_states[OTHER_LAYER[mode]] + last) / 2, attention_mask)
    if mode == "last":
        return last[torch.arange(len(last), device=last.device), last_place(attention_mask > 0)]
    if mode == "wk":
        return wk_pool(hidden_states, attention_mask)
    raise ValueError(f"pooling: {mode!r} must be one of cls, mean, max, last, {', '.join(ALL_LAYERS)}")


def pool_mask_token(last_hidden_state: torch.Tensor, input_ids: torch.Tensor, mask_token_id: int) -> torch.Tensor:
    """Return the vector at the template's mask token (PromptBERT), the last mask token of a row.

    Args:
        last_hidden_state: `(B, T, H)`.
        input_ids: `(B, T)`. For a row without `mask_token_id` the first token is used, see `require_mask_token`.
        mask_token_id: of the tokenizer.

    Returns:
        `(B, H)`.

    Example:
        >>> hidden = torch.arange(4.0).view(1, 4, 1)
        >>> pool_mask_token(hidden, torch.tensor([[5, 103, 103, 7]]), 103)
        tensor([[2.]])
    """
    rows = torch.arange(len(input_ids), device=input_ids.device)
    return last_hidden_state[rows, last_place(input_ids == mask_token_id)]


def require_mask_token(input_ids: torch.Tensor, mask_token_id: int) -> None:
    """Refuse a batch if a row has no mask token: it was not tokenised with the prompt template."""
    if not (input_ids == mask_token_id).any(1).all():
        raise ValueError(
            "input_ids: prompt pooling needs a mask token in every row; use the tokenizer saved with this model "
            "(AutoTokenizer.from_pretrained of the same repository), which adds the template"
        )


def require_right_padding(attention_mask: torch.Tensor) -> None:
    """Refuse a batch with a row that is padded on the left: other positions would change its vector."""
    if not attention_mask[:, 0].all():
        raise ValueError(
            "attention_mask: a row begins with padding, which would change its vector; set "
            'tokenizer.padding_side = "right"'
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
    """Batch norm with statistics over all processes, so that two processes train like one."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(rows)
        everyone, local = gather_rows(rows)
        return super().forward(everyone)[local]


class BatchNormProjection(nn.Module):
    """Linear(H, 2H) - BatchNorm - ReLU - Linear(2H, H) - BatchNorm without affine: the projector of DiffCSE.

    It has no biases. Statistics are over the rows of all views and processes. `(n, H) -> (n, H)`.

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


class MaskedLMTransform(nn.Module):
    """Linear(H, E) - GELU - LayerNorm: the transform in front of a masked-LM head's decoder. `(…, H) -> (…, E)`.

    Supervised PromptBERT starts from the pre-trained one and applies it to the vector and to the template's bias
    before it subtracts them. E is H, or the width of the word embeddings if these are narrower.

    Example:
        >>> MaskedLMTransform(4, 1e-12)(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(self, hidden_size: int, layer_norm_eps: float, embedding_size: int | None = None):
        super().__init__()
        self.dense = nn.Linear(hidden_size, embedding_size or hidden_size)
        self.layer_norm = nn.LayerNorm(embedding_size or hidden_size, eps=layer_norm_eps)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.layer_norm(F.gelu(self.dense(vectors)))


def build_projection(config: SentenceEncoderConfig, *, at_test: bool) -> nn.Module:
    """Build the projection of a configuration.

    Args:
        config: `projection_at_test` decides which model has the projection.
        at_test: true for the serving model, false for the heads of the training model.

    Returns:
        The identity if the other model has the projection, if there is none, or if it is `mlm_transform`, which the
        serving model applies before the bias is subtracted.

    Example:
        >>> from csezoo.modeling import SimCSEConfig
        >>> config = SimCSEConfig(projection="tanh", projection_at_test=False)
        >>> build_projection(config, at_test=True)
        Identity()
    """
    if config.projection in ("none", "mlm_transform") or config.projection_at_test != at_test:
        return nn.Identity()
    if config.projection == "gelu":
        return GELUProjection(config.hidden_size, config.projection_size)
    return {"tanh": TanhProjection, "batchnorm": BatchNormProjection}[config.projection](config.hidden_size)
