"""Compute DiffAug's prefixes from the table and the MLP that its checkpoints contain."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from transformers import PretrainedConfig

from ..errors import UserError

TABLE = "prefixes.embedding.weight"
MLP = ("prefixes.trans1.0.weight", "prefixes.trans1.0.bias", "prefixes.trans1.2.weight", "prefixes.trans1.2.bias")


@torch.no_grad()
def key_value_prefixes(state: Mapping[str, torch.Tensor], config: PretrainedConfig) -> torch.Tensor:
    """Return the keys and values of both views' prefixes, `(M, 2, heads, 2l, H / heads)`, in float32.

    For each of the 2l slots the MLP's output has, layer by layer, the key and then the value, heads side by side.

    Args:
        state: `prefixes.embedding.weight` `(2l, H)` and the MLP (Linear, tanh, Linear); or `(2l, 2MH)` without an MLP.
    """
    there = {name for name in state if name.startswith("prefixes.")}
    expected = {TABLE, *MLP} if there & set(MLP) else {TABLE}
    if wrong := sorted(there ^ expected):
        raise UserError(f"the prefix encoder has other tensors than expected: {', '.join(wrong)}")
    flat = state[TABLE].float()
    layers, hidden, heads = config.num_hidden_layers, config.hidden_size, config.num_attention_heads
    if len(expected) > 1:
        first, first_bias, second, second_bias = (state[name].float() for name in MLP)
        shapes = [flat.shape[1:], first.shape, first_bias.shape, second.shape, second_bias.shape]
        if shapes != [(hidden,), (hidden, hidden), (hidden,), (2 * layers * hidden, hidden), (2 * layers * hidden,)]:
            raise UserError(f"the prefix encoder's shapes {[tuple(shape) for shape in shapes]} do not fit the encoder")
        flat = F.linear(torch.tanh(F.linear(flat, first, first_bias)), second, second_bias)
    if flat.shape[1] != 2 * layers * hidden or len(flat) % 2:
        raise UserError(f"{TABLE} has the shape {tuple(state[TABLE].shape)}, which does not fit two views")
    return flat.unflatten(1, (layers, 2, heads, hidden // heads)).permute(1, 2, 3, 0, 4).contiguous()
