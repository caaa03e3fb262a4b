"""Pool token vectors to a sentence vector, and project it, in training."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from .contrastive.configuration import SentenceEncoderConfig
from .contrastive.distributed import gather_rows, number_of_each, world_size
from .objectives import at_least_float32
from .serving import pooling_csezoo
from .serving.own_form_csezoo import wk_pool
from .serving.pooling_csezoo import last_place


def token_places(
    mode: str, input_ids: torch.Tensor | None, attention_mask: torch.Tensor, mask_token_id: int
) -> torch.Tensor | None:
    """Return the position of the only token of each row whose last vector a pooling reads, `(B,)`.

    Args:
        mode: see `pool`, or `prompt`.
        input_ids: `(B, T)`, or None if the batch has embeddings instead.
        mask_token_id: of the tokenizer; only `prompt` needs it.

    Returns:
        None if the pooling reads more than one token.
    """
    if mode == "cls":
        return attention_mask.new_zeros(len(attention_mask), dtype=torch.long)
    if mode == "last":
        return last_place(attention_mask > 0)
    if mode == "prompt" and input_ids is not None:
        return last_place(input_ids == mask_token_id)
    return None


def pool(hidden_states: tuple[torch.Tensor, ...], attention_mask: torch.Tensor, mode: str) -> torch.Tensor:
    """Pool token vectors as `pooling_csezoo.pool` does, or with the mode `wk`, see `own_form_csezoo.wk_pool`.

    Example:
        >>> pool((torch.tensor([[[1.0], [3.0], [9.0]]]),), torch.tensor([[1, 1, 0]]), "mean")
        tensor([[2.]])
    """
    if mode == "wk":
        return wk_pool(hidden_states, attention_mask)
    return pooling_csezoo.pool(hidden_states, attention_mask, mode)


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
    """Batch norm with statistics over all processes, so that two processes train like one.

    Processes exchange sums over their rows, not the rows.
    """

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.training or world_size() == 1:
            return super().forward(rows)
        count = sum(number_of_each(len(rows)))
        values = at_least_float32(rows)
        mean = gather_rows(values.sum(0)[None])[0].sum(0) / count
        centred = values - mean
        variance = gather_rows(centred.square().sum(0)[None])[0].sum(0) / count
        statistics = {"running_mean": mean, "running_var": variance * count / max(count - 1, 1)}
        with torch.no_grad():
            self.get_buffer("num_batches_tracked").add_(1)
            for name, statistic in statistics.items():
                so_far = self.get_buffer(name)
                so_far.lerp_(statistic.to(so_far), cast(float, self.momentum))
        normalised = centred * torch.rsqrt(variance + self.eps)
        if self.affine:
            normalised = normalised * self.weight + self.bias
        return normalised.to(rows.dtype)


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
    """Linear - GELU - Linear - GELU: the head of SG-OPT (section 3.2). `(…, H) -> (…, width)`.

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
    """Build the projection of a configuration.

    Args:
        config: `projection_at_test` decides which model has the projection.
        at_test: true for the serving model, false for the heads of the training model.

    Returns:
        The identity if the other model has the projection, if there is none, or if it is `mlm_transform`, which the
        serving model applies before the bias is subtracted.
    """
    if config.projection in ("none", "mlm_transform") or config.projection_at_test != at_test:
        return nn.Identity()
    if config.projection == "gelu":
        return GELUProjection(config.pooled_size, config.projection_size)
    return {"tanh": TanhProjection, "batchnorm": BatchNormProjection}[config.projection](config.pooled_size)
