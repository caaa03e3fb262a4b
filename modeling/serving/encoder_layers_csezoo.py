"""Inside the layers of an encoder: where keys and values are, and what some models put there (prefixes, adapters).

A prefix is keys and values in front of those of a text, in every layer. An encoder gets them as those of earlier
tokens. One that takes none has slots in front of the text instead, and a prefix is written over their keys and values.
What the layers compute at the slots is not used. The text sees a prefix in the same way as from a cache, whatever the
attention's code is. The slots cost as much time as tokens.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

# How the names of projections end: BERT and its relatives, DistilBERT, MPNet, DeBERTa, and all that follow Llama.
KEY = (".key", ".k_lin", ".attn.k", ".key_proj", ".k_proj")
VALUE = (".value", ".v_lin", ".attn.v", ".value_proj", ".v_proj")
# One projection to query, key and value, side by side: ModernBERT.
FUSED = (".Wqkv",)


def hidden_layers(backbone: PreTrainedModel) -> list[nn.Module]:
    """Return the Transformer layers in the order in which a forward pass runs them.

    A layer that runs several times (ALBERT) is in the list once for each time.

    Raises:
        ValueError: the backbone has no list of its layers.
    """
    layers = backbone.config.num_hidden_layers
    groups = backbone.config.to_dict().get("num_hidden_groups", layers)
    for modules in backbone.modules():
        if isinstance(modules, nn.ModuleList) and len(modules) == groups:
            return [_without_group(modules[layer * groups // layers]) for layer in range(layers)]
    raise ValueError(f"base_model: {backbone.config.model_type} has no list of {layers} layers; choose another one")


def _without_group(layer: nn.Module) -> nn.Module:
    """Return the only layer of a group (ALBERT), whose output transformers records. Other layers stay as they are."""
    children = list(layer.children())
    if len(children) == 1 and isinstance(children[0], nn.ModuleList) and len(children[0]) == 1:
        return children[0][0]
    return layer


def projections_of(layer: nn.Module, *endings: tuple[str, ...]) -> list[tuple[str, nn.Linear]]:
    """Return the linear layers of one Transformer layer whose names end as given, with a dot before each name."""
    named = [(f".{name}", module) for name, module in layer.named_modules() if isinstance(module, nn.Linear)]
    return [(name, linear) for name, linear in named if name.endswith(sum(endings, ()))]


def cache_argument(backbone: nn.Module) -> str | None:
    """Return by which name a forward pass takes the keys and values of earlier tokens; None if it takes none.

    transformers 5.24 has renamed the argument.
    """
    names = inspect.signature(backbone.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in names), None)


def key_shape(config: PretrainedConfig) -> tuple[int, int]:
    """Return the number of heads that have keys and values, and their size."""
    values = config.to_dict()
    heads = values.get("num_key_value_heads") or config.num_attention_heads
    return heads, values.get("head_dim") or config.hidden_size // config.num_attention_heads


class PrefixCache(DynamicCache):
    """Keys and values before those of a sentence: of `positions` prefix positions, or of a part of them."""

    def __init__(self, positions: int):
        super().__init__()
        self.positions = positions

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the first position of the real tokens, for the embeddings of transformers."""
        return self.positions


class Adapter(nn.Module):
    """h + gelu(h W_down) W_up after a projection of a layer: a bottleneck adapter (Houlsby et al. 2019, section 2)."""

    def __init__(self, size: int, bottleneck: int):
        super().__init__()
        self.down = nn.Linear(size, bottleneck, bias=False)
        self.up = nn.Linear(bottleneck, size, bias=False)

    def add_to(self, linear: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Forward hook of the projection."""
        return output + self.up(F.gelu(self.down(output)))


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
                f"views_module: keys and values of {backbone.config.model_type} are unknown; set views_module: adapter"
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
        raise ValueError(f"views_module: prefix does not reach {backbone.config.model_type}; set views_module: lora")


def run_with_slots(
    run: Callable[..., Any], backbone: PreTrainedModel, prefixes: torch.Tensor, padding: int | None, **inputs: Any
) -> tuple[Any, list[list[torch.Tensor]]]:
    """Run an encoder with prefixes in slots, see `prefixes_in_slots`.

    Args:
        run: calls the backbone.
        padding: id of padding. Slots have another id, because some families give padding no position.
        inputs: `input_ids` `(B, T)` or `inputs_embeds` `(B, T, H)`, and possibly `position_ids` and `token_type_ids`.

    Returns:
        The outputs for the tokens, and what `prefixes_in_slots` yields.
    """
    slots, longer = prefixes.shape[4], dict(inputs)
    for name, value in {"input_ids": int(padding == 0), "token_type_ids": 0, "inputs_embeds": 0.0}.items():
        if (rows := inputs.get(name)) is not None:
            longer[name] = torch.cat([rows.new_full((len(rows), slots, *rows.shape[2:]), value), rows], dim=1)
    if (rows := inputs.get("position_ids")) is not None:
        first = torch.arange(slots, device=rows.device).expand(len(rows), -1)
        longer["position_ids"] = torch.cat([first, rows], dim=1)
    with prefixes_in_slots(backbone, prefixes) as written:
        output = run(**longer)
    of_tokens = BaseModelOutput(
        last_hidden_state=output.last_hidden_state[:, slots:],
        hidden_states=output.hidden_states and tuple(states[:, slots:] for states in output.hidden_states),
        attentions=output.attentions and tuple(weights[:, :, slots:] for weights in output.attentions),
    )
    return of_tokens, written
