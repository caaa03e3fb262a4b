"""A trained encoder as a published repository, and a published repository as a model that is trained further."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights
from transformers.utils import logging

from ..pooling import BatchNormProjection, TanhProjection
from ..serving.configuration_csezoo import CsezooConfig
from ..serving.modeling_csezoo import WHERE_FROM, CsezooModel
from ..serving.own_form_csezoo import CsezooOwnFormModel, Flow
from ..serving.pooling_csezoo import ACTIVATIONS, LayerNorm
from .masked_language_modeling import MaskedLMTransform
from .weight_files import weight_files
from .whitening import Whitening

if TYPE_CHECKING:
    from .sentence_encoder import SentenceEncoderModel  # only for types: that file imports this one

logger = logging.get_logger(__name__)
# No text contains it, because no piece of a text has a space in it: WordPiece splits a text at its spaces, byte-level
# BPE and SentencePiece replace them.
TEMPLATE_MASK = "[TEMPLATE MASK]"
TANH, RELU, GELU, IDENTITY = ACTIVATIONS
TORCH_EPS = 1e-5  # ε of a layer norm of sentence-transformers
# Tensors of a repository that a training model computes (`template_bias`), or has in another place or not at all.
READ_ELSEWHERE = ("backbone.", "layers.", "transform.", "adapters.", "template_bias")
Layer = tuple[dict[str, Any], Mapping[str, torch.Tensor]]  # its description and tensors


@torch.no_grad()
def publish_model(encoder: SentenceEncoderModel) -> CsezooModel:
    """Return the published form of an encoder, with its tokenizer. The encoder does not change.

    Raises:
        ValueError: a prompt is part of the tokenizer, and the encoder has none.
    """
    config, tokenizer = encoder.config, encoder.tokenizer
    backbone = plain_backbone(encoder).cpu()
    own, tensors = encoder.own_form()
    layers = _layers(encoder)
    csezoo: dict[str, Any] = {"method": config.model_type, "pooling": config.pooling}
    csezoo["layers"] = [described for described, _ in layers]
    told = {
        "base_layers": len(config.base_layers or []),
        "prompts": config.named_prompts,
        "default_prompt_name": config.default_prompt_name,
        "similarity": config.similarity if config.similarity != "cosine" else None,
        "truncate_dim": config.truncate_dim,
    }
    csezoo |= {key: value for key, value in told.items() if value}
    if config.projection_at_test and config.projection != "none":
        csezoo["projection"] = config.projection
    if config.whitening_size:
        csezoo["whitening"] = config.whitening_size
    if config.prompts:
        if tokenizer is None:
            raise ValueError("a prompt is part of the tokenizer; set the model's `tokenizer` before it is saved")
        before, after = config.prompt_token_ids[0]
        csezoo["template"] = {"text": config.prompts[0], "before": before, "after": after}
    if config.pooling == "prompt" and tokenizer is not None:  # see above, because such a model has a prompt
        tokenizer, mask = separate_template_mask(backbone, tokenizer, config.mask_token_id)
        after = [mask if token == config.mask_token_id else token for token in csezoo["template"]["after"]]
        csezoo["template"]["after"] = after
        csezoo["mask_token_id"] = mask
    with no_init_weights():  # they would need the memory of another model
        if config.reason_for_own_code:
            form: Any = CsezooOwnFormModel(CsezooConfig(backbone.config, {**csezoo, **own}))
        else:
            described = {**backbone.config.to_dict(), "csezoo": csezoo}
            attention = backbone.config._attn_implementation
            form = CsezooModel(CsezooConfig.from_dict(described, attn_implementation=attention))
    state = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()} | tensors
    for number, (_, of_layer) in enumerate(layers):
        state |= {f"layers.{number}.{name}": tensor for name, tensor in of_layer.items()}
    exact = {name: tensor.to("cpu", encoder.dtype).contiguous() for name, tensor in state.items()}
    form.load_state_dict(exact, assign=True)
    form.tokenizer = tokenizer
    return form.eval()


@torch.no_grad()
def plain_backbone(encoder: SentenceEncoderModel) -> PreTrainedModel:
    """Return the backbone in its class of transformers, with LoRA, and the adapters of PEFT, merged into it.

    A pooler that the encoder does not have is zero. Without one, transformers would draw one at every load.

    Raises:
        ValueError: the encoder lacks a weight, or an adapter cannot be merged.
    """
    with no_init_weights():
        plain = AutoModel.from_config(copy.deepcopy(encoder.backbone.config), dtype=encoder.dtype).to(encoder.device)
    # The tensors themselves, unless LoRA changes them.
    state = _merged(encoder.backbone) if has_adapters(encoder.backbone) else encoder.backbone.state_dict()
    missing, _ = plain.load_state_dict(state, strict=False, assign=not encoder.lora_modules())
    if lost := [name for name in missing if not name.startswith("pooler.")]:
        raise ValueError(f"the encoder has no {', '.join(lost[:5])}")
    for name in missing:
        plain.get_parameter(name).zero_()
    for adapters in encoder.lora_modules():
        adapters.merge_into(plain)
    return plain.eval()


def _merged(backbone: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights of a backbone with PEFT adapters as those of a plain one, with the adapters merged into them.

    Raises:
        ValueError: an adapter cannot be merged.
    """
    merged = copy.deepcopy(backbone)
    for module in merged.modules():
        if isinstance(module, BaseTunerLayer) and not module.disable_adapters:
            try:
                module.merge()
            except NotImplementedError as error:
                raise ValueError(f"{type(module).__name__}: an adapter of this kind cannot be merged") from error
    return plain_state(merged)


def has_adapters(model: nn.Module) -> bool:
    """Return whether PEFT has put adapters into a model."""
    return any(isinstance(module, BaseTunerLayer) for module in model.modules())


def plain_state(backbone: nn.Module) -> dict[str, torch.Tensor]:
    """Return a backbone's tensors with the names that they have without adapters, and those of the adapters.

    PEFT keeps the weights of a layer in its `base_layer`.
    """
    return {name.replace(".base_layer.", "."): tensor for name, tensor in backbone.state_dict().items()}


def separate_template_mask(
    backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, mask_token_id: int
) -> tuple[PreTrainedTokenizerFast, int]:
    """Replace the mask token in a prompt's template by a new token with the same embedding, and return both.

    The zoo pools the last mask token of a text; sentence-transformers can only pool all tokens with a given id. With a
    token of its own for the template, a mask token written in a text is not pooled. The new token cannot be written in
    a text. It is not an added token, because a tokenizer finds those in every text. The vectors do not change.

    Args:
        backbone: gets an embedding for the new token.
        tokenizer: with the template; not changed.
        mask_token_id: of the template.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary, mask_token = state["model"]["vocab"], tokenizer.convert_ids_to_tokens(mask_token_id)
    number = tokenizer.get_vocab().get(TEMPLATE_MASK, len(tokenizer))  # an encoder trained further may have it
    # Added tokens whose ids follow the model's vocabulary join it, so that no id changes.
    added: Any = tokenizer.convert_ids_to_tokens(list(range(len(vocabulary), len(tokenizer))))
    names = added if number < len(tokenizer) else [*added, TEMPLATE_MASK]
    if isinstance(vocabulary, list):  # SentencePiece's unigram model: pieces and scores, in the order of their ids
        lowest = min(score for _, score in vocabulary)
        vocabulary += [[name, lowest] for name in names]
    else:
        vocabulary |= {name: place for place, name in enumerate(names, start=len(vocabulary))}
    template = state["post_processor"]
    for piece in (*template["single"], *template["pair"]):
        special = piece.get("SpecialToken")
        if special and special["id"] == mask_token:
            special["id"] = TEMPLATE_MASK
    del template["special_tokens"][mask_token]
    template["special_tokens"][TEMPLATE_MASK] = {"id": TEMPLATE_MASK, "ids": [number], "tokens": [TEMPLATE_MASK]}
    embeddings = backbone.resize_token_embeddings(max(number + 1, backbone.config.vocab_size), mean_resizing=False)
    with torch.no_grad():
        embeddings.weight[number] = embeddings.weight[mask_token_id]
    spaced = isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer.init_kwargs.get("add_prefix_space", False)
    separated = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps({**state, "truncation": None, "padding": None})),
        **({"add_prefix_space": True} if spaced else {}),  # transformers 4 resets the pre-tokenizer to this
        model_max_length=tokenizer.model_max_length,
        model_input_names=tokenizer.model_input_names,
        **tokenizer.special_tokens_map,
    )
    return separated, number


def transform_layers(encoder: SentenceEncoderModel) -> list[Layer]:
    """Return the layers of a masked-LM transform, or none."""
    transform, size = encoder.transform, encoder.config.hidden_size
    if not isinstance(transform, MaskedLMTransform):
        return []
    norm, layers = transform.layer_norm, [_dense(transform.dense, size, GELU)]
    if norm.eps != TORCH_EPS:  # a layer norm of larger vectors acts as one with a smaller ε
        larger = nn.Linear(size, size, bias=False)
        larger.weight = nn.Parameter(torch.eye(size) * math.sqrt(TORCH_EPS / norm.eps))
        layers.append(_dense(larger, size, IDENTITY))
    described = {"type": "LayerNorm", "dimension": size}
    return [*layers, (described, {f"norm.{name}": tensor for name, tensor in norm.state_dict().items()})]


def _layers(encoder: SentenceEncoderModel) -> list[Layer]:
    """Return the layers that a served vector passes after pooling."""
    projection, size = encoder.projection, encoder.config.pooled_size
    described = zip(encoder.config.base_layers or [], encoder.base_layers, strict=True)
    layers: list[Layer] = [(layer, module.state_dict()) for layer, module in described]
    layers += [] if encoder.config.denoise == "always" else transform_layers(encoder)
    if isinstance(projection, TanhProjection):
        layers.append(_dense(projection.dense, size, TANH))
    if isinstance(projection, BatchNormProjection):
        layers.append(_dense(nn.Sequential(projection.expand, projection.expand_norm), size, RELU))
        layers.append(_dense(nn.Sequential(projection.reduce, projection.reduce_norm), 2 * size, IDENTITY))
    if isinstance(encoder.flow, Flow):
        width = encoder.config.flow_width
        layers.append(({"type": "Flow", "hidden_size": size, "width": width}, encoder.flow.state_dict()))
    if isinstance(encoder.whitening, Whitening):
        layers.append(_dense(encoder.whitening, size, IDENTITY))
    return layers + ([({"type": "Normalize"}, {})] if encoder.config.normalize else [])


def _dense(affine: nn.Module, size: int, activation: str) -> Layer:
    weight, bias = matrix(affine, size)
    described = {"type": "Dense", "in_features": size, "out_features": len(weight), "bias": True}
    return {**described, "activation_function": activation}, {"linear.weight": weight, "linear.bias": bias}


@torch.no_grad()
def matrix(affine: nn.Module, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight `(k, size)` and bias `(k,)` of the linear layer that computes an affine map."""
    affine = copy.deepcopy(affine).cpu().double().eval()
    bias = affine(torch.zeros(1, size, dtype=torch.float64))
    weight = affine(torch.eye(size, dtype=torch.float64)) - bias
    return weight.T.float().contiguous(), bias[0].float().contiguous()


def published_class(repository: Any, **where: Any) -> type[CsezooModel]:
    """Return the class of a published repository."""
    content, _ = PretrainedConfig.get_config_dict(repository, **where)
    return CsezooOwnFormModel if content.get("model_type") == CsezooConfig.model_type else CsezooModel


def load_published(repository: Any, **options: Any) -> CsezooModel:
    """Load a published repository with the installed code; code in the repository is not run.

    Raises:
        ValueError, OSError: see `CsezooModel.from_pretrained`.
    """
    where = {name: options[name] for name in WHERE_FROM if name in options}
    weight_files(repository, **where)
    return published_class(repository, **where).from_pretrained(repository, **options)


@torch.no_grad()
def copy_published(encoder: SentenceEncoderModel, form: CsezooModel) -> None:
    """Copy the weights of a published repository into an encoder of its configuration."""
    state = form.state_dict()
    taken = {name: tensor for name, tensor in state.items() if name in encoder.state_dict()}
    layers: Iterator[Any] = iter(form.layers)
    for number in range(len(encoder.base_layers)):
        taken |= {f"base_layers.{number}.{name}": t for name, t in next(layers).state_dict().items()}
    if isinstance(encoder.projection, TanhProjection):
        taken |= {f"projection.dense.{name}": t for name, t in next(layers).linear.state_dict().items()}
    elif isinstance(encoder.projection, BatchNormProjection):
        taken |= _batch_norms(next(layers).linear, next(layers).linear, encoder.projection)
    elif isinstance(encoder.transform, MaskedLMTransform):
        source = iter(form.transform) if "denoise" in form.config.csezoo else layers  # type: ignore[arg-type]
        taken |= {f"transform.dense.{name}": t for name, t in next(source).linear.state_dict().items()}
        norm = next(layer for layer in source if isinstance(layer, LayerNorm))
        taken |= {f"transform.layer_norm.{name}": t for name, t in norm.norm.state_dict().items()}
    if isinstance(encoder.flow, Flow):
        taken |= {f"flow.{name}": tensor for name, tensor in next(layers).state_dict().items()}
    if isinstance(encoder.whitening, Whitening):
        linear = next(layers).linear
        kernel = linear.weight.double().T
        taken["whitening.kernel"] = kernel
        taken["whitening.mean"] = -linear.bias.double() @ torch.linalg.pinv(kernel)  # y = (x - mean) kernel
    if "adapters" in form.config.csezoo:
        taken |= {f"view_{name}": tensor for name, tensor in state.items() if name.startswith("adapters.")}
    if missing := [name for name in encoder.state_dict() if name not in taken]:
        raise ValueError(f"the repository has no {', '.join(sorted(missing)[:5])}")
    unread = {name for name in state.keys() - taken.keys() if not name.startswith(READ_ELSEWHERE)}
    if unexpected := sorted(unread | (taken.keys() - encoder.state_dict().keys())):
        raise ValueError(f"the repository has {', '.join(unexpected[:5])}, which {type(encoder).__name__} cannot read")
    encoder.load_state_dict(taken)
    encoder.tokenizer = form.tokenizer


def _batch_norms(expand: nn.Linear, reduce: nn.Linear, projection: BatchNormProjection) -> dict[str, torch.Tensor]:
    """Return the tensors of DiffCSE's projector that computes two affine maps, with a ReLU between them."""
    ones = torch.ones_like(expand.bias)
    tensors = {"expand.weight": expand.weight, "reduce.weight": reduce.weight}
    tensors |= {"expand_norm.weight": ones, "expand_norm.bias": expand.bias, "expand_norm.running_mean": 0 * ones}
    tensors |= {"expand_norm.running_var": ones - projection.expand_norm.eps}
    tensors |= {"reduce_norm.running_mean": -reduce.bias}
    tensors |= {"reduce_norm.running_var": torch.ones_like(reduce.bias) - projection.reduce_norm.eps}
    counts = {name: torch.tensor(0) for name in ("expand_norm.num_batches_tracked", "reduce_norm.num_batches_tracked")}
    return {f"projection.{name}": tensor for name, tensor in (tensors | counts).items()}
