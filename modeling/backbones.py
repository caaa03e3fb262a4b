"""What differs between families of backbones, read from the model itself. No other file asks for a family.

A backbone is a plain encoder or decoder of transformers. Its modules are found by their place and the ends of their
names, so that a new family works if it is built like the others. If a part is not found, an error names it.
"""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

# How the names of projections end: BERT and its relatives, DistilBERT, MPNet, DeBERTa, and all that follow Llama.
QUERY: tuple[str, ...] = (".query", ".q_lin", ".attn.q", ".query_proj", ".q_proj")
KEY = (".key", ".k_lin", ".attn.k", ".key_proj", ".k_proj")
VALUE = (".value", ".v_lin", ".attn.v", ".value_proj", ".v_proj")
# One projection to query, key and value, side by side: ModernBERT.
FUSED = (".Wqkv",)
# The outputs of attention and feed-forward network, before dropout and the skip connection.
OUTPUT: tuple[str, ...] = (".output.dense", ".out_lin", ".ffn.lin2", ".attn.o", ".o_proj", ".down_proj", ".fc2", ".Wo")
OUTPUT += (".attention.dense", ".ffn_output")  # ALBERT
# Projections of narrow token embeddings to the width of the layers: ELECTRA and RoFormer, ALBERT and RemBERT.
WIDENED = ("embeddings_project", "encoder.embedding_hidden_mapping_in")
# The dropout of a layer's output, by the names that configurations have for it, in the order of preference.
HIDDEN_DROPOUT = ("hidden_dropout_prob", "dropout", "mlp_dropout", "resid_pdrop", "attention_dropout")


def hidden_layers(backbone: PreTrainedModel) -> list[nn.Module]:
    """Return the Transformer layers in the order in which a forward pass runs them.

    A layer that runs several times (ALBERT) is in the list once for each time.

    Raises:
        ValueError: the backbone has no list of its layers.

    Example:
        >>> from transformers import AlbertConfig, AutoModel
        >>> tiny = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 9}
        >>> layers = hidden_layers(AutoModel.from_config(AlbertConfig(**tiny)))
        >>> len(layers), len(set(layers))
        (4, 1)
    """
    layers = backbone.config.num_hidden_layers
    groups = backbone.config.to_dict().get("num_hidden_groups", layers)
    for modules in backbone.modules():
        if isinstance(modules, nn.ModuleList) and len(modules) == groups:
            return [_without_group(modules[layer * groups // layers]) for layer in range(layers)]
    raise ValueError(
        f"base_model: {backbone.config.model_type} has no list of {layers} layers; choose another base_model"
    )


def _without_group(layer: nn.Module) -> nn.Module:
    """Return the only layer of a group (ALBERT), whose output transformers records. Other layers stay as they are."""
    children = list(layer.children())
    if len(children) == 1 and isinstance(children[0], nn.ModuleList) and len(children[0]) == 1:
        return children[0][0]
    return layer


def embedding_layer(backbone: PreTrainedModel) -> nn.Module:
    """Return the module that has all embedding tables: of tokens, and of positions if there are any."""
    return dict(backbone.named_children()).get("embeddings", backbone.get_input_embeddings())


def embedding_output(backbone: PreTrainedModel) -> nn.Module:
    """Return the module whose output `(B, T, H)` enters the first layer."""
    modules = dict(backbone.named_modules())
    return next((modules[name] for name in WIDENED if name in modules), embedding_layer(backbone))


def first_output(output: torch.Tensor | tuple) -> torch.Tensor:
    """Return the hidden states of a layer's output, which in some families is a tuple."""
    return output[0] if isinstance(output, tuple) else output


def with_first_output(output: torch.Tensor | tuple, hidden: torch.Tensor) -> torch.Tensor | tuple:
    """Return a layer's output with other hidden states."""
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def projections(backbone: PreTrainedModel, *endings: tuple[str, ...]) -> list[tuple[str, nn.Linear]]:
    """Return the linear layers whose names end as given, with their names, in the order of the modules.

    Args:
        backbone: whose layers are searched.
        endings: `QUERY`, `KEY`, `VALUE`, `FUSED` or `OUTPUT`.

    Raises:
        ValueError: the layers have none, or not the same number of them.
    """
    layers = list(dict.fromkeys(hidden_layers(backbone)))
    of_layers = [projections_of(layer, *endings) for layer in layers]
    if not of_layers[0] or len({len(of_layer) for of_layer in of_layers}) > 1:
        raise ValueError(
            f"base_model: each layer of {backbone.config.model_type} needs the same number of projections whose names "
            f"end in one of {', '.join(sum(endings, ()))}; choose another base_model"
        )
    return [pair for of_layer in of_layers for pair in of_layer]


def projections_of(layer: nn.Module, *endings: tuple[str, ...]) -> list[tuple[str, nn.Linear]]:
    """Return the linear layers of one Transformer layer whose names end as given, with a dot before each name."""
    named = [(f".{name}", module) for name, module in layer.named_modules() if isinstance(module, nn.Linear)]
    return [(name, linear) for name, linear in named if name.endswith(sum(endings, ()))]


def takes_cache(backbone: PreTrainedModel) -> bool:
    """Return whether a forward pass can be given the keys and values of earlier tokens."""
    return "past_key_values" in inspect.signature(backbone.forward).parameters


def is_causal(backbone: PreTrainedModel) -> bool:
    """Return whether a token sees only the tokens before it.

    Example:
        >>> from transformers import AutoModel, BertConfig, LlamaConfig
        >>> tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
        >>> [is_causal(AutoModel.from_config(config(**tiny))) for config in (BertConfig, LlamaConfig)]
        [False, True]
    """
    return any(vars(module).get("is_causal", False) for module in backbone.modules())


def shares_position_projections(config: PretrainedConfig) -> bool:
    """Return whether query and key projections read relative positions too, which all rows share (DeBERTa-v3)."""
    return config.to_dict().get("share_att_key", False)


def key_shape(config: PretrainedConfig) -> tuple[int, int]:
    """Return the number of heads that have keys and values, and their size.

    Example:
        >>> from transformers import BertConfig, Qwen3Config
        >>> key_shape(BertConfig()), key_shape(Qwen3Config(num_key_value_heads=8, head_dim=128))
        ((12, 64), (8, 128))
    """
    values = config.to_dict()
    heads = values.get("num_key_value_heads") or config.num_attention_heads
    return heads, values.get("head_dim") or config.hidden_size // config.num_attention_heads


def norm_eps(backbone: PreTrainedModel) -> float:
    """Return ε of the layer norms, read from a module because DistilBERT's configuration does not have it.

    Raises:
        ValueError: the backbone has no layer norms.
    """
    eps = (module.eps for module in backbone.modules() if isinstance(module, nn.LayerNorm))
    if (first := next(eps, None)) is None:
        raise ValueError(
            f"base_model: {backbone.config.model_type} has no layer norms, so the transform of a masked-LM head does "
            "not fit it; set mlm_weight: 0 and another projection than mlm_transform"
        )
    return first


def dropout_fields(config: PretrainedConfig) -> list[str]:
    """Return the names of a configuration's dropout probabilities, in any architecture. LayerDrop is not dropout.

    Example:
        >>> from transformers import BertConfig, GPT2Config
        >>> dropout_fields(BertConfig())
        ['attention_probs_dropout_prob', 'hidden_dropout_prob']
        >>> dropout_fields(GPT2Config())
        ['attn_pdrop', 'embd_pdrop', 'resid_pdrop', 'summary_first_dropout']
    """
    named = {name: value for name, value in config.to_dict().items() if "dropout" in name or name.endswith("_pdrop")}
    return sorted(name for name, value in named.items() if type(value) in (int, float))


def hidden_dropout(config: PretrainedConfig) -> float:
    """Return the dropout probability of a layer's output, 0 if the configuration has none."""
    values = config.to_dict()
    return next((values[name] for name in HIDDEN_DROPOUT if values.get(name) is not None), 0.0)


def longest_input(backbone: PreTrainedModel) -> int:
    """Return the longest sequence that a backbone accepts.

    RoBERTa and its relatives count positions from the number after the padding index, so texts never use the first
    rows of their table. Such a table has a padding index.

    Example:
        >>> from transformers import MPNetConfig, MPNetModel
        >>> tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
        >>> longest_input(MPNetModel(MPNetConfig(max_position_embeddings=514, **tiny)))
        512
    """
    offsets = [table.padding_idx + 1 for table in position_tables(backbone) if table.padding_idx is not None]
    return backbone.config.max_position_embeddings - max(offsets, default=0)


def position_tables(backbone: nn.Module) -> Iterator[nn.Embedding]:
    """Yield the tables with a vector for each position. A backbone whose attention counts positions has none."""
    for name, module in backbone.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            yield module


@contextmanager
def without_checkpointing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let modules keep their activations inside the context, although the backbone checkpoints its gradients.

    A layer that is checkpointed runs again in the backward pass, when hooks of the forward pass are removed.
    transformers 5.20 runs a layer's hooks inside its checkpoint.
    """
    layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
    before = [layer.gradient_checkpointing for layer in layers]
    try:
        for layer in layers:
            layer.gradient_checkpointing = False
        yield
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer.gradient_checkpointing = was
