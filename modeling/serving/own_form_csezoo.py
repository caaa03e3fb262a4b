"""What no plain encoder with modules of sentence-transformers can serve.

Keys of `csezoo` in such a repository's configuration, beside those of every repository:

* `pooling: wk`, see `wk_pool`;
* `prefix_positions`: prefixes in every layer (DiffAug); `adapters`: their size, and after which modules they are;
* `ngrams`: kernel sizes and features of convolutions over the token vectors (IS-BERT);
* `denoise`: tokens of the template and the longest sentence, whose bias is subtracted (PromptBERT), and `transform`:
  layers before that;
* a layer `Flow` (BERT-flow).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_csezoo import OWN_FORM, CsezooConfig
from .encoder_layers_csezoo import Adapter, PrefixCache, cache_argument, key_shape, run_with_slots
from .encoding_csezoo import EncodesTexts  # noqa: F401 (transformers 4 copies only the files imported here)
from .fingerprint_csezoo import FINGERPRINT_NAME  # noqa: F401
from .modeling_csezoo import CODE, CsezooModel
from .pooling_csezoo import LAYERS, BackboneOutput, build_layers
from .quantization_csezoo import PRECISIONS  # noqa: F401

LEAST, WINDOW = 1e-12, 2  # in `wk_pool`: of a divisor; layers on each side of a layer that are its context


def wk_pool(hidden_states: tuple[torch.Tensor, ...], attention_mask: torch.Tensor) -> torch.Tensor:
    r"""Pool the token vectors of all layers to one vector per sentence (SBERT-WK).

    Let v_k be a token's vector in layer k, C_k the vectors of the two layers before and after it, and P the projection
    onto their span, computed by Gram-Schmidt (a QR decomposition). The weight of the layer is the sum of its alignment
    and of its novelty, each divided by its sum over the layers:

        a_k = 1 / (2 (|C_k| + 1) · mean over c in C_k of cos(c, P v_k)),   n_k = ‖v_k - P v_k‖ / ‖v_k‖

    The weight of a token is the variance over k of cos(v_k, v_{k+1}), divided by its sum over the tokens of a sentence
    without the last one, [SEP]. There is nothing to fit. As in the release, the first layer that counts is the fourth
    (of L < 12 layers, layer L // 3), and the first two layers that count have no context before them.

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
    layers = layers[min(4, (len(layers) - 1) // 3) :]
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


SCALE = 3.0  # of the logarithms of a flow's scales in Glow, so that they are learned faster
LEVELS, DEPTH = 3, 3  # of the release of BERT-flow: levels, steps of a level


class ActNorm(nn.Module):
    """y = (x + b) · exp(3 s), with a bias and a scale for each feature. `(n, H) -> (n, H)`."""

    def __init__(self, size: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.log_scale = nn.Parameter(torch.zeros(size), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.bias) * (SCALE * self.log_scale).exp()


class FlowStep(nn.Module):
    """ActNorm, the features in reverse order, and an additive coupling: the second half gets a function of the first.

    The function is a network with two hidden layers, each normalised and rectified. `(n, H) -> (n, H)`.
    """

    def __init__(self, size: int, width: int):
        super().__init__()
        self.norm = ActNorm(size)
        self.hidden = nn.ModuleList(nn.Linear(inputs, width, bias=False) for inputs in (size // 2, width))
        self.hidden_norm = nn.ModuleList(ActNorm(width) for _ in self.hidden)
        self.last = nn.Linear(width, size // 2, bias=False)
        self.last_norm = ActNorm(size // 2)
        for layer in (*self.hidden, self.last):
            layer.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.norm(x).flip(-1).chunk(2, -1)
        shift = first
        for layer, norm in zip(self.hidden, self.hidden_norm, strict=True):
            shift = F.relu(norm(layer(shift)))
        return torch.cat([first, second + self.last_norm(self.last(shift))], -1)


class Flow(nn.Module):
    """z = f(u), f invertible, such that z is distributed as a standard Gaussian. `(…, H) -> (…, H)`.

    f is a Glow: three levels of three steps. Each level passes the first half of its features to the next one, and the
    second half is a part of z.

    Args:
        hidden_size: H, the dimensions of the vectors, a multiple of 8.
        width: hidden units of a coupling.

    Raises:
        ValueError: the dimensions cannot be halved three times.

    References:
        Li et al. 2020, "On the Sentence Embeddings from Pre-trained Language Models", section 4. Sizes are those of
        the release's `config_l3_d3_w32`.
    """

    def __init__(self, hidden_size: int, width: int):
        super().__init__()
        if hidden_size % 2**LEVELS:
            raise ValueError(
                f"flow: {hidden_size} dimensions are no multiple of {2**LEVELS}; choose another base_model"
            )
        sizes = [hidden_size // 2**level for level in range(LEVELS)]
        self.levels = nn.ModuleList(nn.ModuleList(FlowStep(size, width) for _ in range(DEPTH)) for size in sizes)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        x, latent = vectors, []
        for number, level in enumerate(self.levels, start=1):
            for step in level:  # type: ignore[attr-defined]  # the modules of a list have no type
                x = step(x)
            if number < LEVELS:
                x, part = x.chunk(2, -1)
                latent.append(part)
        return torch.cat([*latent, x], -1)


class NGramFeatures(nn.Module):
    """Convolutions over the token vectors of a sentence, with its ends padded by zeros.

    Args:
        hidden_size: H, length of a token vector.
        kernel_sizes: tokens that each convolution sees.
        features, activation: how many features each computes, H together, and what follows: `relu` or `none`.

    Example:
        >>> NGramFeatures(8, [1, 3], [4, 4], "none")(torch.randn(2, 5, 8), torch.ones(2, 5)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, hidden_size: int, kernel_sizes: list[int], features: list[int], activation: str):
        super().__init__()
        self.activation = activation
        self.convolutions = nn.ModuleList(
            nn.Conv1d(hidden_size, number, size, padding="same")
            for size, number in zip(kernel_sizes, features, strict=True)
        )

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the features `(R, T, H)` of token vectors `(R, T, H)`, with zeros at padding."""
        real = attention_mask.unsqueeze(-1).to(hidden.dtype)
        channels = (hidden * real).transpose(1, 2)  # (R, H, T)
        features = torch.cat([each(channels) for each in self.convolutions], dim=1).transpose(1, 2) * real
        return F.relu(features) if self.activation == "relu" else features


class CsezooOwnFormModel(CsezooModel):
    """A sentence encoder of the zoo that has no plain form."""

    # With gradient checkpointing, a layer would run again without its prefixes.
    supports_gradient_checkpointing = False
    _keys_to_ignore_on_load_missing = None
    code = (*CODE, "own_form", "encoder_layers")
    auto_map = OWN_FORM
    poolings = (*CsezooModel.poolings, "wk")
    known_layers = {**LAYERS, "Flow": Flow}
    # The one module returns `pooler_output`. Only sentence-transformers since 5.4 knows it, an older one says so.
    encoder_module = "sentence_transformers.base.modules.transformer.Transformer"
    encoder_settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
        "module_output_name": "sentence_embedding",
    }
    settings = {**CsezooModel.settings, "__version__": {"sentence_transformers": "5.4.0"}}

    def __init__(self, config: CsezooConfig):
        super().__init__(config)
        own, size = config.csezoo, config.hidden_size
        self.first_position = own.get("prefix_positions", 0)
        if self.first_position:
            heads, width = key_shape(config.backbone_config)
            shape = (config.backbone_config.num_hidden_layers, 2, heads, self.first_position, width)
            self.prefixes = nn.Parameter(torch.zeros(shape), requires_grad=False)
        if "adapters" in own:
            self.adapters = nn.ModuleList()
            for linear in map(self.backbone.get_submodule, own["adapters"]["after"]):
                self.adapters.append(Adapter(linear.out_features, own["adapters"]["size"]))
                linear.register_forward_hook(self.adapters[-1].add_to)
        if "ngrams" in own:
            self.ngrams = NGramFeatures(size, **own["ngrams"])
        self.transform = build_layers(own.get("transform", []), self.known_layers)
        if "denoise" in own:  # the template's bias for each length of a sentence
            self.template_bias = nn.Parameter(torch.zeros(own["denoise"]["longest"] + 1, size), requires_grad=False)
        # What sentence-transformers takes for the length of the vectors, where no module of its own makes them.
        config.projection_dim = self.embedding_size
        self.post_init()

    def run_backbone(self, attention_mask: torch.Tensor, **inputs: Any) -> BackboneOutput:
        slots, mask = self.first_position, attention_mask
        if not slots:
            outputs = super().run_backbone(mask, **inputs)
            if "ngrams" in self.config.csezoo:
                outputs.last_hidden_state = self.ngrams(outputs.last_hidden_state, mask)
                if outputs.hidden_states is not None:
                    outputs.hidden_states = (*outputs.hidden_states, outputs.last_hidden_state)
            return outputs
        rows = len(mask)
        mask = torch.cat([mask.new_ones(rows, slots), mask], dim=1)
        prefixes = self.prefixes.unsqueeze(2).expand(-1, -1, rows, -1, -1, -1)  # (M, 2, rows, heads, 2l, size)
        if name := cache_argument(self.backbone):
            cache = PrefixCache(slots)  # a new one, because each forward appends to it
            for layer, (keys, values) in enumerate(prefixes):
                cache.update(keys, values, layer)
            return super().run_backbone(mask, **{name: cache}, **inputs)
        run, padding = partial(super().run_backbone, mask), self.config.backbone_config.pad_token_id
        return run_with_slots(run, self.backbone, prefixes, padding, **inputs)[0]

    def pool_outputs(
        self, outputs: BackboneOutput, input_ids: torch.Tensor | None, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        if self.pooling == "wk":
            return wk_pool(outputs.hidden_states, attention_mask)  # type: ignore[arg-type]  # they were requested
        pooled = super().pool_outputs(outputs, input_ids, attention_mask)
        for layer in self.transform:
            pooled = layer(pooled)
        if "denoise" not in self.config.csezoo:
            return pooled
        lengths = attention_mask.sum(1) - self.config.csezoo["denoise"]["template_tokens"]
        return pooled - self.template_bias[lengths.clamp(min=0)]

    def _modules_on_top(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return iter(())
