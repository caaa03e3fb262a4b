"""What differs between families of backbones, read from the model itself.

Only this file and `serving/encoder_layers_csezoo.py` ask for a family.

A backbone is a plain encoder or decoder of transformers. Its modules are found by their place and the ends of their
names, so that a new family works if it is built like the others. If a part is not found, an error names it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

# Projections of narrow token embeddings to the width of the layers: ELECTRA and RoFormer, ALBERT and RemBERT.
WIDENED = ("embeddings_project", "encoder.embedding_hidden_mapping_in")
# The dropout of a layer's output, by the names that configurations have for it, in the order of preference.
HIDDEN_DROPOUT = ("hidden_dropout_prob", "dropout", "mlp_dropout", "resid_pdrop", "attention_dropout")


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


def shares_position_projections(config: PretrainedConfig) -> bool:
    """Return whether query and key projections read relative positions too, which all rows share (DeBERTa-v3)."""
    return config.to_dict().get("share_att_key", False)


def norm_eps(backbone: PreTrainedModel) -> float:
    """Return ε of the layer norms, read from a module because DistilBERT's configuration does not have it."""
    eps = (module.eps for module in backbone.modules() if isinstance(module, nn.LayerNorm))
    if (first := next(eps, None)) is None:
        raise ValueError(
            f"base_model: {backbone.config.model_type} has no layer norms, so the transform of a masked-LM head does "
            "not fit it; set mlm_weight: 0 and another projection than mlm_transform"
        )
    return first


def dropout_fields(config: PretrainedConfig) -> list[str]:
    """Return the names of the dropout probabilities in any configuration. LayerDrop is not dropout."""
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
