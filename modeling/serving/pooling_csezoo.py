"""What follows the encoder: the pooling of its token vectors, and the layers after it.

The modules have the names and the files of sentence-transformers, which every version since 3.0 reads.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

# Poolings that average two layers: the last one and this one of `hidden_states`.
OTHER_LAYER = {"first_last_mean": 1, "embeddings_last_mean": 0, "last2_mean": -2}
POOLINGS = ("cls", "mean", "max", "last", *OTHER_LAYER)
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": nn.Tanh,
    "torch.nn.modules.activation.ReLU": nn.ReLU,
    "torch.nn.modules.activation.GELU": nn.GELU,
    "torch.nn.modules.linear.Identity": nn.Identity,
}


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
    """Return the position of the last marked token of each row, `(B,)`, or 0 if none is marked."""
    return torch.where(marked, torch.arange(marked.shape[1], device=marked.device), 0).amax(1)


def vectors_at(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the vectors `(B, H)` at one place in each row of `(B, T, H)`. Traces and graphs of it fit any batch."""
    return states.gather(1, places[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)


def pool(hidden_states: tuple[torch.Tensor, ...], attention_mask: torch.Tensor, mode: str) -> torch.Tensor:
    """Pool the token vectors of a batch to one vector per sentence.

    Args:
        hidden_states: tuple of `(B, T, H)`, the embedding layer's output first (as with `output_hidden_states`).
        attention_mask: `(B, T)`, 1 for real tokens.
        mode: `cls`, the first token of the last layer; `mean` and `max`, over the real tokens of the last layer, with
            special tokens; `first_last_mean`, the mean over tokens of the average of the first Transformer layer and
            the last one (as in SimCSE's current release); `embeddings_last_mean`, the same with the output of the
            embedding layer as the first (as in SimCSE's first release, whose scores the papers print);
            `last2_mean`, the same with the last two layers; `last`, the last real token, whichever side is padded.

    Returns:
        `(B, H)`.

    Raises:
        ValueError: there is no such mode.

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
        return vectors_at(last, last_place(attention_mask > 0))
    raise ValueError(f"pooling: {mode!r} must be one of {', '.join(POOLINGS)}")


def pool_mask_token(last_hidden_state: torch.Tensor, input_ids: torch.Tensor, mask_token_id: int) -> torch.Tensor:
    """Return the vector `(B, H)` at the template's mask token (PromptBERT), the last mask token of a row.

    For a row without `mask_token_id` the first token is used, see `check_mask_token`.

    Example:
        >>> hidden = torch.arange(4.0).view(1, 4, 1)
        >>> pool_mask_token(hidden, torch.tensor([[5, 103, 103, 7]]), 103)
        tensor([[2.]])
    """
    return vectors_at(last_hidden_state, last_place(input_ids == mask_token_id))


def check_mask_token(input_ids: torch.Tensor, mask_token_id: int) -> None:
    """Refuse a batch if a row has no mask token: it was not tokenised with the prompt template."""
    if not (input_ids == mask_token_id).any(1).all():
        raise ValueError(
            "input_ids: prompt pooling needs a mask token in every row; use the tokenizer saved with this model "
            "(AutoTokenizer.from_pretrained of the same repository), which adds the template"
        )


def check_right_padding(attention_mask: torch.Tensor) -> None:
    """Refuse a batch with a row that is padded on the left: other positions would change its vector."""
    if not attention_mask[:, 0].all():
        raise ValueError('attention_mask: a row begins with padding; set tokenizer.padding_side = "right"')


class Dense(nn.Module):
    """An affine map and an activation. `(…, in_features) -> (…, out_features)`."""

    def __init__(self, in_features: int, out_features: int, activation_function: str, bias: bool = True):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = ACTIVATIONS[activation_function]()

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(vectors))


class LayerNorm(nn.Module):
    """Layer norm with PyTorch's ε, 1e-5. `(…, dimension) -> (…, dimension)`."""

    def __init__(self, dimension: int):
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.norm(vectors)


class Normalize(nn.Module):
    """Scale vectors to length 1, so that their dot products are their cosines. `(…, D) -> (…, D)`.

    Example:
        >>> Normalize()(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return F.normalize(vectors, dim=-1)


# The layers after a pooling that sentence-transformers and the zoo both have, by the names that both give them.
LAYERS: dict[str, type[nn.Module]] = {"Dense": Dense, "LayerNorm": LayerNorm, "Normalize": Normalize}


def build_layers(described: list[dict[str, Any]], known: dict[str, type[nn.Module]]) -> nn.ModuleList:
    """Build the layers of a configuration."""
    layers = nn.ModuleList()
    for layer in described:
        try:
            layers.append(known[layer["type"]](**{name: value for name, value in layer.items() if name != "type"}))
        except (KeyError, TypeError) as error:
            raise ValueError(f"config.json: {layer!r:.80} is no layer of {', '.join(known)}: {error!r}") from error
    return layers


def modules_on_top(
    csezoo: dict[str, Any], hidden_size: int, num_hidden_layers: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and configuration of each module of sentence-transformers after a plain encoder."""
    pooling = csezoo["pooling"]
    if pooling == "prompt":  # a mean in which only the template's mask token has a weight
        yield "WordWeights", {"unknown_word_weight": 0.0}
    if pooling in OTHER_LAYER:
        yield (
            "WeightedLayerPooling",
            {"word_embedding_dimension": hidden_size, "num_hidden_layers": num_hidden_layers, "layer_start": 0},
        )
    modes = {
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_max_tokens": pooling == "max",
        "pooling_mode_mean_tokens": pooling not in ("cls", "max", "last"),
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_lasttoken": pooling == "last",
    }
    yield "Pooling", {"word_embedding_dimension": hidden_size, **modes}
    for layer in csezoo.get("layers", []):
        yield layer["type"], {name: value for name, value in layer.items() if name != "type"}


def size_after(layers: list[dict[str, Any]], size: int) -> int:
    """Return the dimensions of vectors after these layers, if they have `size` before."""
    for layer in layers:
        size = layer.get("out_features", size)
    return size


def layer_weights(pooling: str, layers: int) -> torch.Tensor:
    """Return the weight of each layer in a pooling of two layers, `(layers + 1,)`, the embedding layer first.

    Example:
        >>> layer_weights("last2_mean", 2)
        tensor([0., 1., 1.])
    """
    weights = torch.zeros(layers + 1)
    weights[OTHER_LAYER[pooling]] += 1
    weights[-1] += 1
    return weights


def as_words(config: dict[str, Any]) -> dict[str, Any]:
    """Return a module's configuration with one word for the pooling, as sentence-transformers 6 and older write it.

    Example:
        >>> as_words({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
        {'pooling_mode': 'cls'}
        >>> as_words({"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": True})
        {'word_embedding_dimension': 8, 'pooling_mode': 'mean'}
    """
    words = {"embedding_dimension": "word_embedding_dimension"}
    named = {words.get(name, name): value for name, value in config.items() if name != "include_prompt"}
    flags = {name: value for name, value in named.items() if name.startswith("pooling_mode_")}
    if flags:
        short = {"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean", "lasttoken": "lasttoken"}
        chosen = [short.get(name[13:], name[13:]) for name, value in flags.items() if value]
        named = {name: value for name, value in named.items() if name not in flags}
        named["pooling_mode"] = "+".join(chosen)
    return named
