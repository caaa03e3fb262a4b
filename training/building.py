"""From a recipe to a model that can be trained and the tokenizers around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerBase

from csezoo.modeling import METHODS, method
from csezoo.modeling.modeling_contrastive import ForContrastiveLearning

from .errors import UserError, one_line
from .prompts import Template, serving_tokenizer, template_token_ids
from .recipes import Recipe


def load_tokenizer(model: str, **options) -> PreTrainedTokenizerBase:
    """A pre-trained encoder's own tokenizer.

    Raises:
        UserError: it has none, or one without the special tokens of an encoder.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, **options)
    except (OSError, ValueError) as error:
        raise UserError(f"{model} has no tokenizer ({one_line(error)})") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes up an empty one where files are missing
        raise UserError(f"{model} has no tokenizer: put its tokenizer.json beside the weights")
    if tokenizer.cls_token is None or tokenizer.sep_token is None or tokenizer.pad_token is None:
        raise UserError(f"{model}: its tokenizer lacks the special tokens of a BERT or RoBERTa encoder")
    return tokenizer


@dataclass
class Build:
    """A model and how texts reach it.

    Args:
        model: the training model.
        tokenizer: the backbone's own, for the sentence alone.
        serving_tokenizer: the one that is published, template included.
        templates: ids before and after the sentence, one for each view (the last for all further views).
        sentence_length: word pieces of a sentence in training, without `templates`.
    """

    model: ForContrastiveLearning
    tokenizer: PreTrainedTokenizerBase
    serving_tokenizer: PreTrainedTokenizerBase
    templates: list[Template]
    sentence_length: int


def load_backbone(base_model: str, **options) -> torch.nn.Module:
    """A pre-trained encoder without its pre-training heads; of a zoo checkpoint, its backbone.

    Raises:
        UserError: it cannot be found, or it lacks tensors of an encoder.
    """
    try:
        model, info = AutoModel.from_pretrained(base_model, output_loading_info=True, **options)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise UserError(
            f"base_model: {base_model!r} could not be loaded ({one_line(error)}); "
            "give --base_model a directory, or a Hub id with the network on"
        ) from error
    lost = [name for name in info["missing_keys"] if not name.startswith("pooler.")]
    if lost:
        raise UserError(f"base_model: {base_model!r} has no {', '.join(sorted(lost)[:5])} ({len(lost)} tensors lost)")
    return model.backbone if model.config.model_type in METHODS else model


def build(recipe: Recipe) -> Build:
    """The model a recipe trains, with the base model's weights in it and fresh heads on it."""
    if not recipe.base_model:
        raise UserError("base_model: give --base_model a Hub id or a directory")
    backbone = load_backbone(
        recipe.base_model,
        revision=recipe.base_revision or "main",
        dtype=torch.float32,
        attn_implementation=recipe.attn_implementation,
    )
    if Path(recipe.base_model).is_dir():
        backbone.config.name_or_path = ""  # a path of this machine is not published
    tokenizer = load_tokenizer(recipe.base_model, revision=recipe.base_revision or "main")
    prompts = recipe.model.get("prompts") or [None]
    templates = [template_token_ids(tokenizer, prompt) for prompt in prompts]
    config_class, _, training_class = method(recipe.method)
    try:
        config = config_class(
            **recipe.model,
            backbone_config=backbone.config,
            prompt_token_ids=templates if prompts != [None] else None,
            mask_token_id=tokenizer.mask_token_id,
            special_token_ids=sorted(tokenizer.all_special_ids),
        )
        model = training_class(config)
    except ValueError as error:
        raise UserError(str(error)) from error
    if recipe.attn_implementation:
        model.set_attn_implementation(recipe.attn_implementation)
    model.start_from(backbone)
    if config.mlm_weight > 0:
        load_masked_lm_head(model, recipe.base_model, recipe.base_revision or "main")
    # Published templates stand around 32 pieces of the sentence; without one, the special tokens are among the 32.
    sentence_length = recipe.max_length - (2 if prompts == [None] else 0)
    longest = longest_input(backbone.config) - config.prefix_positions
    if sentence_length < 1 or sentence_length + max(map(template_length, templates)) > longest:
        raise UserError(f"max_length: {recipe.max_length} does not fit the {longest} positions of {recipe.base_model}")
    serving = serving_tokenizer(tokenizer, templates[0], max_length=longest, leading_space=prompts != [None])
    return Build(model, tokenizer, serving, templates, sentence_length)


def template_length(template: Template) -> int:
    return sum(map(len, template))


def without_pooler(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith("pooler.")}


def longest_input(config: AutoConfig) -> int:
    """Longest sequence of a backbone: RoBERTa's positions start after the padding index."""
    offset = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0
    return config.max_position_embeddings - offset


def load_masked_lm_head(model: ForContrastiveLearning, base_model: str, revision: str) -> None:
    """Copy the base model's masked-LM head, where it has one, into the auxiliary head."""
    names = {
        "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    }
    kind = model.config.backbone_config.model_type
    if kind not in names:
        raise UserError(f"mlm_weight: the masked-LM head of a {kind} is not known, only {' and '.join(names)}")
    try:
        source, info = AutoModelForMaskedLM.from_pretrained(base_model, revision=revision, output_loading_info=True)
    except (OSError, ValueError) as error:
        raise UserError(f"mlm_weight: {base_model} has no masked-LM head ({one_line(error)})") from error
    state = source.state_dict()
    dense, norm, bias = names[kind]
    if f"{dense}.weight" in info["missing_keys"]:
        raise UserError(f"mlm_weight: {base_model} has no masked-LM head")
    head = model.lm_head
    head.dense.load_state_dict({part: state[f"{dense}.{part}"] for part in ("weight", "bias")})
    head.layer_norm.load_state_dict({part: state[f"{norm}.{part}"] for part in ("weight", "bias")})
    head.decoder_bias.data.copy_(state[bias])
