"""A training model of the zoo around the encoder of a SentenceTransformer."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, cast

import torch
from accelerate.utils import extract_model_from_parallel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
    Transformer,
)
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from csezoo.modeling import SentenceEncoderConfig, method
from csezoo.modeling.contrastive.backbones import longest_input
from csezoo.modeling.contrastive.published import has_adapters, plain_state
from csezoo.modeling.contrastive.training_model import ForContrastiveLearning
from csezoo.modeling.contrastive.view_adapters import ViewAdapter, ViewAdapters
from csezoo.modeling.serving.pooling_csezoo import BackboneOutput

from ..errors import UserError
from ..loading.masked_lm import generator_of, load_masked_lm_head
from ..loading.served_encoder import SERVED_POOLINGS
from ..loading.tokenizers import refuse_without_mask_token
from ..recipes import make_recipe, method_keys
from ..recipes.reading import refuse_unknown

logger = logging.getLogger(__name__)
OWN_MODULES = (Pooling, Dense, Dropout, LayerNorm, Normalize)
# Keys of every method that a loss does not take, and why.
ITS_OWN = "the SentenceTransformer has its own; change it there, and leave the key out"
REFUSED = {
    "pooling": ITS_OWN,
    "prompts": "give prompts to SentenceTransformerTrainingArguments, and leave the key out",
    "denoise": "only a zoo model has a template; train with csezoo.for_training, or leave the key out",
    "full_stop": ITS_OWN,
    "projection_at_test": "append a Dense module to the SentenceTransformer, and give projection='none'",
    "ema_decay": "a SentenceTransformer saves the trained weights, not their average; train with csezoo.for_training",
    "lora_rank": "add an adapter to the SentenceTransformer (model.add_adapter), and leave the key out",
    "lora_dropout": "add an adapter to the SentenceTransformer (model.add_adapter), and leave the key out",
    "nli_weight": "a batch has sentences or labelled pairs; leave the key out, and give each its data set and loss",
    "rank_weight": "a batch has no vectors of a teacher; train with csezoo train, or leave the key out",
}


class ReadsModules:
    """An encoder of the zoo that pools with the modules of a SentenceTransformer."""

    after: tuple[nn.Module, ...]  # a tuple, so that this encoder does not have them as modules of its own
    prompt_length: int | None = None  # tokens of the prompt, which the pooling may leave out

    def pool_outputs(
        self, outputs: BackboneOutput, input_ids: torch.Tensor | None, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        features: dict[str, Any] = {"token_embeddings": outputs.last_hidden_state, "attention_mask": attention_mask}
        if self.prompt_length is not None:
            features["prompt_length"] = self.prompt_length
        for module in self.after:
            features = module(features)
        return features["sentence_embedding"]


def parts_of(model: SentenceTransformer) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, tuple[nn.Module, ...]]:
    """Return encoder, tokenizer and further modules of a SentenceTransformer, without a `Normalize` at the end.

    The losses compare directions, so `Normalize` changes nothing in them, and a projection reads what is before it.

    Raises:
        UserError: it has another structure.
    """
    if not isinstance(model, SentenceTransformer):
        raise UserError(f"model: expected a SentenceTransformer, got {type(model).__name__}")
    first, *after = model.children()
    others = [type(module).__name__ for module in after if not isinstance(module, OWN_MODULES)]
    if not isinstance(first, Transformer) or not isinstance(first.tokenizer, PreTrainedTokenizerBase) or others:
        raise UserError(
            f"model: a loss of the zoo needs a Transformer, then Pooling, Dense, Dropout, LayerNorm or Normalize, "
            f"got {', '.join([type(first).__name__, *others])}"
        )
    while after and isinstance(after[-1], Normalize):
        after.pop()
    return cast(PreTrainedModel, first.auto_model), first.tokenizer, tuple(after)


def plain_pooling(after: tuple[nn.Module, ...]) -> str | None:
    """Return the zoo's name of the pooling, if it is all that follows the encoder and the zoo has it."""
    (pooling, *others) = after or (None,)
    mode = pooling.pooling_mode if isinstance(pooling, Pooling) and pooling.include_prompt and not others else None
    return SERVED_POOLINGS.get(mode) if isinstance(mode, str) else None


def complete_size(model: SentenceTransformer) -> int:
    """Return the dimensions of the vectors that a loss reads: all, also of a model that returns the first ones."""
    cut, model.truncate_dim = model.truncate_dim, None
    size = model.get_embedding_dimension()
    model.truncate_dim = cut
    return cast(int, size)


def training_model(
    model: SentenceTransformer, name: str, keys: dict[str, Any], generator: str | PreTrainedModel | None = None
) -> ForContrastiveLearning:
    """Build the training model of a method around a SentenceTransformer's encoder. Its heads are new.

    Args:
        model: not changed, except that some methods freeze a part of its encoder.
        keys: of the method's configuration.
    """
    encoder, tokenizer, after = parts_of(model)
    if type(encoder).__module__.startswith("transformers_modules."):
        raise UserError(
            "model: its encoder is code of its repository; load it without trust_remote_code, or choose another model"
        )
    config_class, _, training_class = method(name)
    for key in keys:
        if key in REFUSED:
            raise UserError(f"{key}: {REFUSED[key]}")
    refuse_unknown([*keys], method_keys(name).keys())
    base = encoder.config.name_or_path or type(encoder).__name__
    named = {"base_model": base, "generator": generator if isinstance(generator, str) else None}
    recipe = make_recipe({"name": "loss", "method": name, **named, **keys})
    pooling = plain_pooling(after)
    backbone_config = copy.deepcopy(encoder.config)
    backbone_config.pad_token_id = tokenizer.pad_token_id
    config = config_class(
        **{"projection_at_test": False, **recipe.model},
        pooling=pooling or "mean",
        backbone_config=backbone_config,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=sorted(tokenizer.all_special_ids),
    )
    refuse_layers(after, config)
    size, heads = complete_size(model), config.projection != "none" or "auxiliary" in seams(training_class)
    if size != config.hidden_size and heads:
        raise UserError(
            f"model: its vectors have {size} dimensions and its layers {config.hidden_size}, and the heads of {name} "
            "need the same; remove the Dense module"
            + ("" if "auxiliary" in seams(training_class) else ", or give projection='none'")
        )
    if config.mlm_weight > 0:
        refuse_without_mask_token(base, tokenizer, "mlm_weight")
    given = generator if isinstance(generator, PreTrainedModel) else None
    editor = generator_of(recipe, tokenizer, config, given)
    longest = model.max_seq_length
    added = config.longest_prefix(tokenizer) + config.most_added_pieces(longest or 0)
    most = longest_input(encoder) - config.prefix_positions - added
    if editor:
        most = min(most, longest_input(editor))
    if longest and longest > most:
        raise UserError(f"max_seq_length: {longest} is too long for {name}; set model.max_seq_length = {most} or less")
    refuse_adapters(encoder, config)
    trained = training_class(config)
    nn.Module.to(trained, encoder.device, encoder.dtype)
    if editor:
        trained.get_submodule("generator").load_state_dict(editor.state_dict())
    for key, head in trained.masked_lm_heads().items():
        load_masked_lm_head(key, head, encoder.config, base, "main")
    place_encoder(trained, encoder)
    if pooling is None:
        serving = trained.model
        serving.__class__ = type(type(serving).__name__, (ReadsModules, type(serving)), {})
        serving.after = after
    if config.reason_for_own_code:
        logger.warning("%s; model.save() leaves this out, loss.save_pretrained() keeps it", config.reason_for_own_code)
    return trained.train(model.training)


def refuse_layers(after: tuple[nn.Module, ...], config: SentenceEncoderConfig) -> None:
    """Refuse layers after the pooling where a method refuses those of a base model: it reads the encoder's layers."""
    layers = [{"type": type(module).__name__} for module in after if isinstance(module, (Dense, LayerNorm))]
    if said := objection(config, "base_layers", layers):
        raise UserError(said.removeprefix("base_"))


def objection(config: SentenceEncoderConfig, key: str, value: Any) -> str | None:
    """Return what a method says against another value of a key; None if it takes it."""
    changed = copy.copy(config)
    setattr(changed, key, value)
    try:
        changed.check()
    except ValueError as error:
        return str(error)
    return None


def refuse_adapters(encoder: PreTrainedModel, config: SentenceEncoderConfig) -> None:
    """Refuse an encoder with PEFT adapters where a method refuses `lora_rank`: its other encoders have none.

    So is one refused whose forward pass has the adapters of another loss.
    """
    hooks = [hook for module in encoder.modules() for hook in module._forward_hooks.values()]
    if any(isinstance(getattr(hook, "__self__", None), ViewAdapter) for hook in hooks):
        raise UserError("model: its encoder has the adapters of another loss; load it again")
    if has_adapters(encoder) and (said := objection(config, "lora_rank", 1)):
        raise UserError(f"model: it has an adapter; {said}")


def seams(training_class: type[ForContrastiveLearning]) -> set[str]:
    """Return the seams that a method, or any of several combined ones, changes."""
    return {seam for cls in training_class.__mro__ for seam in vars(cls).get("seams", ())}


def place_encoder(trained: ForContrastiveLearning, encoder: PreTrainedModel) -> None:
    """Put an encoder into a training model. All that starts from it has its weights: twin, discriminator."""
    new = trained.model.backbone
    state = plain_state(encoder)
    if missing := [name for name in new.state_dict() if name not in state]:
        raise UserError(f"model: its adapter replaces {missing[0]}; merge it, or train without modules_to_save")
    new.load_state_dict({name: state[name] for name in new.state_dict()})
    trained.start_from(new)
    trained.model.backbone = encoder
    for module in trained.model.modules():
        if isinstance(module, ViewAdapters):
            module.adapt(encoder)


def unwrapped(model: nn.Module) -> SentenceTransformer:
    """Return the SentenceTransformer inside what a trainer has wrapped around it."""
    return cast(SentenceTransformer, extract_model_from_parallel(model))


def run_inside(model: nn.Module, forward: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call a function as the forward pass of a SentenceTransformer, inside everything that is wrapped around it.

    Precision (autocast) and `DistributedDataParallel` then apply to all that the function computes, as if the encoder
    alone had been called. The model's modules are hidden until the function begins.
    """
    inner = unwrapped(model)
    modules = inner._modules

    def step(features: dict[str, Any], **_: Any) -> dict[str, Any]:
        inner._modules = modules
        return forward()

    inner._modules = {"csezoo": step}  # type: ignore[dict-item]  # it is called like a module
    try:
        return model({})
    finally:
        inner._modules = modules
