"""Build the training model and the tokenizers of a recipe."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DynamoBackend
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from csezoo.modeling import SentenceEncoderConfig, method
from csezoo.modeling.contrastive.allowed_values import check_prompt
from csezoo.modeling.contrastive.backbones import longest_input
from csezoo.modeling.contrastive.packing import use_packed_attention
from csezoo.modeling.contrastive.training_model import ForContrastiveLearning
from csezoo.modeling.serving.own_form_csezoo import LEVELS
from csezoo.modeling.serving.pooling_csezoo import size_after

from ..data.collation import ViewCollator, tokenize
from ..errors import UserError, as_user_error
from ..loading.backbones import load_backbone, run_once, set_dropout, set_module_dropout
from ..loading.masked_lm import generator_of, load_masked_lm_head
from ..loading.served_encoder import ServedEncoder, served_encoder
from ..loading.sizes import refuse_oversized
from ..loading.templates import Template, own_ends, serving_tokenizer, template_token_ids
from ..loading.tokenizers import (
    UNKNOWN,
    load_tokenizer,
    reading_tokenizer,
    refuse_missing_embeddings,
    refuse_without_mask_token,
)
from ..recipes import Recipe

logger = logging.getLogger(__name__)


@dataclass
class Build:
    """A training model with its tokenizers and templates.

    Args:
        model: the training model.
        tokenizer: of the backbone, for sentences without template.
        serving_tokenizer: the published one, which adds the template.
        templates: ids before and after the sentence, one pair per view (the last for all further views).
        sentence_length: most word pieces of a sentence in training, without `templates`.
        served: how the base model is served, None for a bare encoder.
    """

    model: ForContrastiveLearning
    tokenizer: PreTrainedTokenizerBase
    serving_tokenizer: PreTrainedTokenizerBase
    templates: list[Template]
    sentence_length: int
    served: ServedEncoder | None

    def tokenizing(self, *, labelled: bool = False) -> dict[str, Any]:
        """Return the arguments with which `tokenize` reads training sentences, or labelled pairs."""
        config = cast(SentenceEncoderConfig, self.model.config)
        cut = {"tokenizer": self.tokenizer, "length": self.sentence_length, "prompt": config.default_prompt}
        return cut if labelled else {**cut, "config": config}

    def collator(self, *, labelled: bool = False, texts: bool = False) -> ViewCollator:
        """Return the collator of training sentences.

        Args:
            labelled: of labelled pairs instead, which no method edits, and whose columns are the views.
            texts: the rows are texts, not token ids.
        """
        config = cast(SentenceEncoderConfig, self.model.config)
        return ViewCollator(
            self.templates,
            cast(int, self.serving_tokenizer.pad_token_id),
            range if labelled else config.view_columns,  # every column of labelled pairs is a view
            None if labelled else config.edit_sentence,
            partial(tokenize, **self.tokenizing(labelled=labelled)) if texts else None,
            edits_special_tokens=config.edits_special_tokens,
        )


def build(recipe: Recipe) -> Build:
    """Read how the base model of a recipe is served, and `build_on` it."""
    served = served_encoder(recipe.base_model, recipe.base_revision) if recipe.base_model else None
    return build_on(recipe, served)


def build_on(recipe: Recipe, served: ServedEncoder | None) -> Build:
    """Build the training model of a recipe, with the weights of the base model and new heads.

    Args:
        served: how the base model is served, see `follow_base`; None for a bare encoder.

    Raises:
        UserError: the base model or the generator cannot be used, or it does not fit the recipe.
    """
    if not recipe.base_model:
        raise UserError("base_model: not given; give --base_model a Hub id or a directory")
    backbone = _backbone(recipe)
    _refuse_map_size(recipe, size_after(served.layers if served else [], backbone.config.hidden_size))
    tokenizer = _tokenizer(recipe, backbone)
    templates = _templates(recipe, tokenizer, served)
    config = _configuration(recipe, backbone, tokenizer, templates, served)
    generator = generator_of(recipe, tokenizer, config)
    model = _training_model(recipe, config, backbone, generator, served)
    sentence_length, served_length = _lengths(recipe, config, backbone, generator, tokenizer, templates)
    first_prompt = (recipe.model.get("prompts") or [""])[0]
    with reading_tokenizer(recipe.base_model):
        serving = serving_tokenizer(
            tokenizer,
            templates[0],
            max_length=served_length,
            leading_space="{mask}" in first_prompt or " {sentence}" in first_prompt,
            full_stop=config.full_stop,
        )
    return Build(model, tokenizer, serving, templates, sentence_length, served)


def _backbone(recipe: Recipe) -> PreTrainedModel:
    backbone = load_backbone(
        str(recipe.base_model),
        revision=recipe.base_revision or "main",
        dtype=torch.float32,
        attn_implementation=recipe.attn_implementation,
    )
    if Path(str(recipe.base_model)).is_dir():
        backbone.config.name_or_path = ""  # do not publish a path of this machine
    if recipe.dropout is not None:
        set_dropout(backbone.config, recipe.dropout)
    return backbone


def _refuse_map_size(recipe: Recipe, size: int) -> None:
    """Refuse a whitening, a cut or a flow that does not fit the dimensions of the base model's vectors."""
    if recipe.whitening and recipe.whitening > size:
        raise UserError(f"whitening: {recipe.whitening} must be at most {size}, the dimensions of {recipe.base_model}")
    most, cut = recipe.whitening or size, recipe.model.get("truncate_dim")
    if cut and cut > most and not recipe.model.get("projection_at_test"):
        raise UserError(f"truncate_dim: {cut} must be at most {most}, the dimensions of the served vectors")
    if recipe.flow and size % 2**LEVELS:
        raise UserError(
            f"flow: the {size} dimensions of {recipe.base_model} must be a multiple of "
            f"{2**LEVELS}; give another --base_model, or leave flow out"
        )


def _tokenizer(recipe: Recipe, backbone: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a backbone, and show that the two work together."""
    name = str(recipe.base_model)
    tokenizer = load_tokenizer(name, lower_case=recipe.lower_case, revision=recipe.base_revision or "main")
    refuse_missing_embeddings(name, tokenizer, backbone.config.vocab_size)
    if backbone.config.pad_token_id is None:
        backbone.config.pad_token_id = tokenizer.pad_token_id
    if not recipe.attn_implementation:  # one that needs a GPU cannot run here yet
        run_once(name, lambda: backbone(input_ids=torch.tensor([tokenizer(UNKNOWN).input_ids])))
    return tokenizer


def _templates(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, served: ServedEncoder | None) -> list[Template]:
    """Return the ids around a sentence for each prompt of the recipe; without one, those that the base is served with.

    A bare encoder has its special tokens.
    """
    prompts, pooling = recipe.model.get("prompts"), str(recipe.model.get("pooling"))
    if prompts and pooling != "last":
        refuse_without_mask_token(str(recipe.base_model), tokenizer, "prompts")
    for prompt in prompts or []:
        with as_user_error():
            check_prompt(prompt, pooling)
    if served and not prompts:
        return [own_ends(tokenizer)]
    return [template_token_ids(tokenizer, prompt) for prompt in prompts or [None]]


def _configuration(
    recipe: Recipe,
    backbone: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    templates: list[Template],
    served: ServedEncoder | None,
) -> SentenceEncoderConfig:
    with as_user_error():
        config = method(recipe.method)[0](
            **recipe.model,
            backbone_config=backbone.config,
            prompt_token_ids=templates if recipe.model.get("prompts") else None,
            mask_token_id=tokenizer.mask_token_id,
            special_token_ids=sorted(tokenizer.all_special_ids),
            batch_size=recipe.batch_size,
            base_layers=served.layers if served else None,
        )
    trains_on_pairs = recipe.nli_steps or recipe.nli_epochs
    if config.reason_for_labelled_pairs and not trains_on_pairs:
        raise UserError(f"{config.reason_for_labelled_pairs}; give --nli_steps or --nli_epochs too")
    for key in ("matryoshka_dims", "mlm_weight", "rank_weight", "rank_consistency_weight"):
        if recipe.max_steps == 0 and trains_on_pairs and recipe.model.get(key):
            raise UserError(f"{key}: only the sentences train it, and max_steps: 0 trains on none; leave it out")
    if config.mlm_weight > 0:
        refuse_without_mask_token(str(recipe.base_model), tokenizer, "mlm_weight")
    if recipe.mini_batch_size and config.reason_for_whole_batch:
        raise UserError(f"mini_batch_size: {config.reason_for_whole_batch}; leave it out")
    return config


def _training_model(
    recipe: Recipe,
    config: SentenceEncoderConfig,
    backbone: PreTrainedModel,
    generator: PreTrainedModel | None,
    served: ServedEncoder | None,
) -> ForContrastiveLearning:
    training_class = method(recipe.method)[2]
    with as_user_error():
        refuse_oversized(recipe.method, config.to_dict(), lambda: training_class(config))
        model = training_class(config)
    model.mini_batch_size = recipe.mini_batch_size
    if generator:
        model.get_submodule("generator").load_state_dict(generator.state_dict())
    if recipe.attn_implementation:
        model.set_attn_implementation(recipe.attn_implementation)
    for key, head in model.masked_lm_heads().items():
        load_masked_lm_head(key, head, backbone.config, str(recipe.base_model), recipe.base_revision or "main")
    if served:
        served.load_layers(model.model.base_layers, recipe.base_revision)
    model.start_from(backbone)  # after the heads, because an average of the weights starts here
    if recipe.dropout is not None:
        for encoder in model.encoders():
            set_module_dropout(encoder, recipe.dropout)
    return model


def _lengths(
    recipe: Recipe,
    config: SentenceEncoderConfig,
    backbone: PreTrainedModel,
    generator: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    templates: list[Template],
) -> tuple[int, int]:
    """Return the most word pieces of a sentence in training, and of a served text with its template.

    Raises:
        UserError: the backbone, the generator or the bias of a template has too few positions.
    """
    # In the releases, max_length counts special tokens, but not a template.
    special = 0 if recipe.model.get("prompts") else template_length(templates[0])
    sentence_length = recipe.max_length - special
    if sentence_length < 1:
        raise UserError(
            f"max_length: {recipe.max_length} must be at least {special + 1}, because it counts the special tokens"
        )
    # A space at its end becomes a part of the first word in some vocabularies.
    prompt = len(tokenizer(config.default_prompt.rstrip(), add_special_tokens=False).input_ids)
    if sentence_length <= prompt:
        raise UserError(
            f"max_length: {recipe.max_length} leaves no place for a word after the default prompt of {prompt} word "
            f"pieces; give {special + prompt + 1} or more"
        )
    template = template_length(templates[0])
    if recipe.served_length and recipe.served_length <= template + prompt:
        raise UserError(
            f"served_length: {recipe.served_length} leaves no place for a word beside {template} word pieces of "
            f"template and special tokens and {prompt} of the default prompt; give {template + prompt + 1} or more"
        )
    longest = longest_input(backbone) - config.prefix_positions
    text = sentence_length + max(map(template_length, templates)) + config.most_added_pieces(sentence_length)
    needed = text + config.longest_prefix(tokenizer)
    needed += config.bias_length_offset if config.denoise != "none" else 0
    if needed > longest:
        raise UserError(
            f"max_length: {recipe.max_length} needs {needed} positions, {recipe.base_model} has {longest}; lower it"
        )
    # The bias counts from its offset, also where RoBERTa's texts never are: in the first rows of its positions.
    bias = backbone.config.max_position_embeddings - config.prefix_positions - config.denoise_position_offset
    if config.denoise != "none" and needed > bias:
        raise UserError(
            f"denoise_position_offset: {config.denoise_position_offset} leaves {max(bias, 0)} positions of "
            f"{recipe.base_model} for the template's bias, which needs {needed}; lower it"
        )
    if generator and text > (most := longest_input(generator)):
        raise UserError(
            f"max_length: {recipe.max_length} needs {text} positions, the generator {recipe.generator} has "
            f"{most}; lower it"
        )
    served_length = min(longest, recipe.served_length or longest)
    return sentence_length, min(served_length, bias) if config.denoise == "always" else served_length


def choose_layout(recipe: Recipe, model: ForContrastiveLearning, accelerator: Accelerator) -> None:
    """Let a model leave out the padding of batches where that saves time. Dropout differs between the layouts."""
    compiled = is_compiled(accelerator)
    if compiled and not recipe.padded:
        logger.info("padding is computed: compiled code would be compiled again for every batch")
    model.compute_padding(recipe.padded or compiled)
    if compiled:  # a graph cannot change it
        for encoder in model.encoders():
            use_packed_attention(encoder)


def is_compiled(accelerator: Accelerator) -> bool:
    """Return whether `accelerate launch` asked for torch.compile."""
    return accelerator.state.dynamo_plugin.backend != DynamoBackend.NO


def template_length(template: Template) -> int:
    return sum(map(len, template))
