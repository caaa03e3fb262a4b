"""Write a serving model without custom code: a plain backbone, then sentence-transformers modules."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel
from csezoo.modeling.pooling import OTHER_LAYER, BatchNormProjection, TanhProjection
from csezoo.modeling.saved_files import save_tokenizer, write_sentence_transformers_files
from csezoo.modeling.whitening import Whitening

from ..files import write_json
from ..loading.backbones import plain_backbone
from ..loading.templates import serving_tokenizer

# No text contains it, because no piece of a text has a space in it: WordPiece splits a text at its spaces, byte-level
# BPE and SentencePiece replace them.
TEMPLATE_MASK = "[TEMPLATE MASK]"
TANH, RELU, IDENTITY = (
    f"torch.nn.modules.{name}" for name in ("activation.Tanh", "activation.ReLU", "linear.Identity")
)


@torch.no_grad()
def separate_template_mask(
    encoder: SentenceEncoderModel, tokenizer: PreTrainedTokenizerFast
) -> PreTrainedTokenizerFast:
    """Replace the mask token in a prompt's template by a new token with the same embedding.

    The zoo pools the last mask token of a text; sentence-transformers can only pool all tokens with a given id. With a
    token of its own for the template, a mask token written in a text is not pooled. The new token cannot be written in
    a text. The vectors do not change.

    Args:
        encoder: a model with `prompt` pooling; changed in place.
        tokenizer: its tokenizer; not changed.

    Returns:
        The tokenizer with the new token.
    """
    config, tokenizer = encoder.config, _with_template_mask(tokenizer)
    template_mask = cast(int, tokenizer.convert_tokens_to_ids(TEMPLATE_MASK))
    size = max(len(tokenizer), config.vocab_size)
    table = encoder.backbone.resize_token_embeddings(size, mean_resizing=False).weight
    table[template_mask] = table[config.mask_token_id]
    before, after = config.prompt_token_ids[0]
    template = before, [template_mask if token == config.mask_token_id else token for token in after]
    config.mask_token_id, config.prompt_token_ids = template_mask, [template]
    return serving_tokenizer(tokenizer, template, max_length=tokenizer.model_max_length)


def _with_template_mask(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one more token in the vocabulary of its model.

    It is not an added token, because a tokenizer finds those in every text. Added tokens whose ids follow the model's
    vocabulary join it, so that no id changes.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    names = [*tokenizer.convert_ids_to_tokens(list(range(len(vocabulary), len(tokenizer)))), TEMPLATE_MASK]
    if isinstance(vocabulary, list):  # SentencePiece's unigram model: pieces and scores, in the order of their ids
        lowest = min(score for _, score in vocabulary)
        vocabulary += [[name, lowest] for name in names]
    else:
        vocabulary |= {name: number for number, name in enumerate(names, start=len(vocabulary))}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        model_max_length=tokenizer.model_max_length,
        **tokenizer.special_tokens_map,
    )


def write_plain_model(
    directory: Path,
    encoder: SentenceEncoderModel,
    tokenizer: PreTrainedTokenizerFast,
    truncate_dim: int | None = None,
) -> None:
    """Write a plain transformers model, its tokenizer and the sentence-transformers modules on top of it.

    Modules and keys have the names that every version of sentence-transformers knows.

    Args:
        directory: an existing, empty directory.
        encoder: a model that needs no custom code, see `needs_own_code`. With `prompt` pooling, pass it through
            `separate_template_mask` first.
        tokenizer: its tokenizer.
        truncate_dim: dimensions that sentence-transformers keeps.
    """
    plain = plain_backbone(encoder)  # with a pooler: without one, transformers would draw one and warn at every load
    plain.config.output_hidden_states = encoder.config.pooling in OTHER_LAYER
    plain.save_pretrained(directory)
    save_tokenizer(directory, tokenizer)
    modules = [("Transformer", "")]
    for name, config, tensors in _modules_on_top(encoder, tokenizer):
        # Text Embeddings Inference reads the folder `1_Pooling`, whatever `modules.json` says, and takes the first
        # token's vector if there is none. With a module there that it does not know, it refuses to start.
        folder = f"{len(modules)}_{'Pooling' if len(modules) == 1 else name}"
        modules.append((name, folder))
        (directory / folder).mkdir()
        write_json(directory / folder / "config.json", config)
        if tensors:
            save_file(tensors, directory / folder / "model.safetensors", metadata={"format": "pt"})
    write_sentence_transformers_files(
        directory,
        [
            {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{name}"}
            for number, (name, folder) in enumerate(modules)
        ],
        {"max_seq_length": tokenizer.model_max_length, "do_lower_case": False},
        truncate_dim=truncate_dim,
    )


def write_without_plain_form(
    directory: Path, encoder: SentenceEncoderModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Write what an ONNX file needs beside it: the tokenizer, and a configuration.

    transformers.js and Text Embeddings Inference read the sizes in the configuration before they open the file. Its
    `model_type` is one that no library knows. With that of the backbone, sentence-transformers would pool the token
    vectors, wrongly and without an error. That of the zoo does not fit, because the zoo nests the backbone's sizes.
    """
    sizes = encoder.backbone.config.to_dict()
    named = {"model_type": f"{encoder.config.model_type}_onnx", "architectures": [type(encoder).__name__]}
    write_json(directory / "config.json", sizes | named)
    save_tokenizer(directory, tokenizer)


def _modules_on_top(
    encoder: SentenceEncoderModel, tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[str, Mapping[str, object], dict[str, torch.Tensor]]]:
    """Yield name, configuration and tensors of each module after the backbone."""
    config = encoder.config
    pooling, size, layers = config.pooling, config.hidden_size, config.num_hidden_layers
    if pooling == "prompt":  # a mean in which only the template's mask token has a weight
        vocabulary = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        words = {"word_weights": {TEMPLATE_MASK: 1.0}, "unknown_word_weight": 0.0}
        yield "WordWeights", {"vocab": vocabulary, **words}, {}
    if pooling in OTHER_LAYER:
        weights = torch.zeros(layers + 1)  # the embedding layer first
        weights[OTHER_LAYER[pooling]] += 1
        weights[-1] += 1
        shape: dict[str, object] = {"word_embedding_dimension": size, "num_hidden_layers": layers, "layer_start": 0}
        yield "WeightedLayerPooling", shape, {"layer_weights": weights}
    modes = {
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_max_tokens": pooling == "max",
        "pooling_mode_mean_tokens": pooling not in ("cls", "max", "last"),
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_lasttoken": pooling == "last",
    }
    yield "Pooling", {"word_embedding_dimension": size, **modes}, {}
    for affine, activation in affine_layers(encoder):
        weight, bias = matrix(affine, size)
        shape = {"in_features": size, "out_features": len(weight), "bias": True, "activation_function": activation}
        yield "Dense", shape, {"linear.weight": weight, "linear.bias": bias}
        size = len(weight)


def affine_layers(encoder: SentenceEncoderModel) -> list[tuple[nn.Module, str]]:
    """Return the affine maps that a served vector passes after pooling, each with the activation that follows it."""
    projection, whitening = encoder.projection, encoder.whitening
    layers: list[tuple[nn.Module, str]] = []
    if isinstance(projection, TanhProjection):
        layers.append((projection.dense, TANH))
    if isinstance(projection, BatchNormProjection):
        layers.append((nn.Sequential(projection.expand, projection.expand_norm), RELU))
        layers.append((nn.Sequential(projection.reduce, projection.reduce_norm), IDENTITY))
    if isinstance(whitening, Whitening):
        layers.append((whitening, IDENTITY))
    return layers


@torch.no_grad()
def matrix(affine: nn.Module, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight `(k, size)` and bias `(k,)` of the linear layer that computes an affine map of vectors `(size,)`.

    Example:
        >>> weight, bias = matrix(Whitening(3, 2), 3)
        >>> weight.shape, bias
        (torch.Size([2, 3]), tensor([0., 0.]))
    """
    affine = copy.deepcopy(affine).double()
    bias = affine(torch.zeros(1, size, dtype=torch.float64))
    weight = affine(torch.eye(size, dtype=torch.float64)) - bias
    return weight.T.float().contiguous(), bias[0].float().contiguous()
