"""Prefixes for attention layers that cannot be given the keys and values of earlier tokens.

The text gets extra positions in front of it, its slots. In every layer, a prefix is written over the keys and values
of the slots. What the layers compute at the slots is not used. The text therefore sees a prefix in the same way as
from a cache, whatever the attention's code is. The slots cost as much time as tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .backbones import FUSED, KEY, VALUE, hidden_layers, projections_of


def keys_and_values(backbone: PreTrainedModel) -> list[dict[nn.Linear, tuple[int, ...]]]:
    """Return for each pass of a layer its projections to keys (0), values (1), or both.

    Raises:
        ValueError: a layer has no projection to keys or none to values.
    """
    of_layers = []
    for layer in hidden_layers(backbone):
        kinds = ((FUSED, (0, 1)), (KEY, (0,)), (VALUE, (1,)))
        found: dict[nn.Linear, tuple[int, ...]]
        found = {linear: parts for ends, parts in kinds for _, linear in projections_of(layer, ends)}
        if sorted(sum(found.values(), ())) != [0, 1]:
            raise ValueError(
                f"views_module: prefix needs the projections to keys and values of each layer, and those of "
                f"{backbone.config.model_type} are not known; set views_module: adapter"
            )
        of_layers.append(found)
    return of_layers


@contextmanager
def prefixes_in_slots(backbone: PreTrainedModel, prefixes: torch.Tensor) -> Iterator[list[list[torch.Tensor]]]:
    """Write a prefix over the keys and values of the first positions of each layer, for one forward pass.

    Args:
        backbone: an encoder, which is given input with `slots` more positions in front.
        prefixes: `(M, 2, rows, heads, slots, size)`, keys and values of every layer.

    Yields:
        `[keys, values]`: two lists, to which each layer's pass adds a tensor `(rows, heads, slots + T, size)`.

    Raises:
        ValueError: a layer has no projection to keys and values, or did not use it.
    """
    heads = prefixes.shape[3]
    flat = prefixes.transpose(3, 4).flatten(4)  # (M, 2, rows, slots, heads * size)
    written: list[list[torch.Tensor]] = [[], []]
    # A module that runs several times (ALBERT) writes the prefix of another layer each time. DeBERTa's key projection
    # reads positions after the tokens of a layer: there is nothing left to write then.
    waiting: dict[nn.Module, list[torch.Tensor]] = {}
    of_linear: dict[nn.Linear, tuple[int, ...]] = {}
    for places, prefix in zip(keys_and_values(backbone), flat, strict=True):
        of_linear |= places
        for linear in places:
            waiting.setdefault(linear, []).append(prefix)

    this_thread = get_ident()  # others may use the same backbone meanwhile

    def write(linear: nn.Linear, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if get_ident() != this_thread or not waiting[linear]:
            return output
        prefix, parts = waiting[linear].pop(0), of_linear[linear]
        slots = prefix.shape[2]
        columns = list(output.chunk(3, -1)) if len(parts) == 2 else [output]
        for part in parts:
            place = part - 2 if len(parts) == 2 else 0  # query, key, value
            columns[place] = torch.cat([prefix[part].to(output.dtype), columns[place][:, slots:]], dim=1)
            written[part].append(columns[place].unflatten(-1, (heads, -1)).transpose(1, 2))
        return torch.cat(columns, -1)

    hooks = [linear.register_forward_hook(write) for linear in waiting]
    try:
        yield written
    finally:
        for hook in hooks:
            hook.remove()
    if any(waiting.values()):
        raise ValueError(
            f"views_module: prefix does not reach the attention of {backbone.config.model_type}; set views_module: "
            "lora"
        )


def beside_slots(inputs: dict[str, Any], slots: int, padding: int | None) -> dict[str, Any]:
    """Put positions for slots before the tokens of a backbone's inputs.

    Args:
        inputs: `input_ids` `(B, T)` or `inputs_embeds` `(B, T, H)`, and possibly `position_ids` and `token_type_ids`.
        slots: how many.
        padding: id of padding. Slots have another id, because some families give padding no position.
    """
    token = 1 if padding == 0 else 0
    first = {"input_ids": token, "token_type_ids": 0, "inputs_embeds": 0.0}
    longer = dict(inputs)
    for name, value in first.items():
        if inputs.get(name) is not None:
            rows = inputs[name]
            longer[name] = torch.cat([rows.new_full((rows.shape[0], slots, *rows.shape[2:]), value), rows], dim=1)
    if inputs.get("position_ids") is not None:
        rows = inputs["position_ids"]
        longer["position_ids"] = torch.cat(
            [torch.arange(slots, device=rows.device).expand(rows.shape[0], -1), rows], 1
        )
    return longer
