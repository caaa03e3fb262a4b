"""From a recipe to a model that can be trained and the tokenizers around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from csezoo.modeling import METHODS, DiffAugConfig, DiffCSEConfig, L2PCSRConfig, SentenceEncoderConfig, method
from csezoo.modeling.masked_language_modeling import MaskedLMHead
from csezoo.modeling.modeling_contrastive import ForContrastiveLearning

from .batches import ViewCollator, tokenize
from .errors import UserError, one_line
from .prompts import Template, serving_tokenizer, template_token_ids
from .recipes import Recipe

# No repository's code is run, and no pickle is read: weights are safetensors or an error.
SAFELY = {"trust_remote_code": False, "use_safetensors": True}


MOST_LAYERS = 1000  # no encoder has as many


def refuse_oversized(name: str, said: dict[str, object], make: Callable[[], torch.nn.Module]) -> None:
    """Stop before a model is made that is larger than this machine's memory: a configuration can say anything.

    Args:
        name: of the model, for the message.
        said: its configuration; a layer takes memory of its own beside its tensors.
        make: makes it; here without allocating its tensors.

    Raises:
        UserError: its parameters alone need more, or it has more layers than any encoder.
    """
    layers = most_layers(said)
    if layers > MOST_LAYERS:
        raise UserError(f"{name}: its configuration asks for {layers:,} layers, no encoder has over {MOST_LAYERS:,}")
    with torch.device("meta"):
        needed = sum(tensor.numel() * tensor.element_size() for tensor in make().state_dict().values())
    memory = psutil.virtual_memory().total
    if needed > memory:
        raise UserError(
            f"{name}: its configuration asks for {needed / 2**30:,.1f} GiB of parameters, this machine has "
            f"{memory / 2**30:,.1f} GiB"
        )


def refuse_oversized_checkpoint(name: str, auto_class: Any = AutoModel, revision: str | None = None) -> None:
    """The same of a directory or Hub id, as `auto_class` would make it."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False, revision=revision)
    refuse_oversized(name, config.to_dict(), lambda: auto_class.from_config(config, trust_remote_code=False))


def most_layers(said: dict[str, object]) -> int:
    """The largest number of layers that a configuration, or one inside it, names.

    Example:
        >>> most_layers({"num_hidden_layers": 2, "backbone_config": {"num_hidden_layers": 12}})
        12
    """
    inner = [most_layers(value) for value in said.values() if isinstance(value, dict)]
    own = [value for key, value in said.items() if isinstance(value, int) and str(key).endswith("layers")]
    return max(own + inner, default=0)


def load_tokenizer(model: str, **options: Any) -> PreTrainedTokenizerBase:
    """A pre-trained encoder's own tokenizer.

    Raises:
        UserError: it has none, or one without the special tokens of an encoder.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False, **options)
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

    def collate_texts(self, rows: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        """A training batch of rows that still hold texts, one a column: tokenised, cut and templated."""
        config = cast(SentenceEncoderConfig, self.model.config)

        def to_ids(columns: dict[str, list]) -> dict[str, list]:
            return tokenize(columns, self.tokenizer, self.sentence_length, config)

        pad_token_id = self.serving_tokenizer.pad_token_id
        return ViewCollator(self.templates, pad_token_id, config.view_columns, tokenize=to_ids)(rows)


def load_backbone(base_model: str, **options: Any) -> PreTrainedModel:
    """A pre-trained encoder without its pre-training heads; of a zoo checkpoint, its backbone.

    Raises:
        UserError: it cannot be found, or it lacks tensors of an encoder.
    """
    try:
        refuse_oversized_checkpoint(base_model, revision=options.get("revision"))
        model, info = AutoModel.from_pretrained(base_model, output_loading_info=True, **SAFELY, **options)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"base_model: {base_model!r} could not be loaded ({one_line(error)}); "
            "give a directory, or a Hub id with the network on"
        ) from error
    lost = [name for name in info["missing_keys"] if not name.startswith("pooler.")]
    if lost:
        raise UserError(f"base_model: {base_model!r} has no {', '.join(sorted(lost)[:5])} ({len(lost)} tensors lost)")
    backbone = model.backbone if model.config.model_type in METHODS else model
    if backbone.config.is_encoder_decoder or backbone.config.to_dict().get("max_position_embeddings", 0) < 1:
        raise UserError(f"base_model: {base_model!r} ({backbone.config.model_type}) is no encoder of the BERT family")
    return backbone


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
    if recipe.whitening and recipe.whitening > backbone.config.hidden_size:
        raise UserError(
            f"whitening: {recipe.whitening} is more than the {backbone.config.hidden_size} dimensions of "
            f"{recipe.base_model}"
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
        if isinstance(config, DiffAugConfig) and config.freeze_views and not (recipe.nli_steps or recipe.nli_epochs):
            raise UserError("freeze_views: they would stay as they were drawn, give --nli_steps or --nli_epochs too")
        edits = isinstance(config, DiffCSEConfig) and config.needs_generator
        if edits:
            generator = load_generator(recipe, tokenizer, config)
            config.generator_config = generator.config
        refuse_oversized(recipe.method, config.to_dict(), lambda: training_class(config))
        model = training_class(config)
        model.mini_batch_size = recipe.mini_batch_size
        if recipe.mini_batch_size and isinstance(config, L2PCSRConfig):
            raise UserError("mini_batch_size: L2P-CSR learns its masks from the loss of the whole batch, leave it out")
        if recipe.mini_batch_size and config.mlm_weight > 0:
            raise UserError(
                "mini_batch_size: masked language modelling (mlm_weight) takes the whole batch, leave it out"
            )
    except ValueError as error:
        raise UserError(str(error)) from error
    if edits:
        model.get_submodule("generator").load_state_dict(generator.state_dict())
    if recipe.attn_implementation:
        model.set_attn_implementation(recipe.attn_implementation)
    model.start_from(backbone)
    for key, head in masked_lm_heads(model).items():
        load_masked_lm_head(key, head, backbone.config, recipe.base_model, recipe.base_revision or "main")
    # Published templates stand around 32 pieces of the sentence; without one, the special tokens are among the 32.
    sentence_length = recipe.max_length - (2 if prompts == [None] else 0)
    longest = longest_input(backbone.config) - config.prefix_positions
    needed = sentence_length + max(map(template_length, templates)) + config.longest_prefix(tokenizer)
    needed += config.bias_length_offset if config.denoise != "none" else 0
    if sentence_length < 1:
        raise UserError(
            f"max_length: {recipe.max_length} leaves nothing to the sentence, special tokens are among them"
        )
    if needed > longest:
        raise UserError(f"max_length: {recipe.max_length} does not fit the {longest} positions of {recipe.base_model}")
    if edits and sentence_length + max(map(template_length, templates)) > longest_input(generator.config):
        raise UserError(
            f"max_length: {recipe.max_length} does not fit the {longest_input(generator.config)} positions of the "
            f"generator {recipe.generator}"
        )
    serving = serving_tokenizer(tokenizer, templates[0], max_length=longest, leading_space=prompts != [None])
    return Build(model, tokenizer, serving, templates, sentence_length)


def template_length(template: Template) -> int:
    return sum(map(len, template))


def longest_input(config: PretrainedConfig) -> int:
    """Longest sequence of a backbone: RoBERTa's positions start after the padding index."""
    offset = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0
    return config.max_position_embeddings - offset


def load_generator(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, config: SentenceEncoderConfig
) -> PreTrainedModel:
    """The masked language model that edits sentences: of any size, in the encoder's own word pieces.

    Raises:
        UserError: none is named, it cannot be found, it is no masked language model, or it writes other word pieces.
    """
    name, revision = recipe.generator, recipe.generator_revision or "main"
    if not name:
        raise UserError(
            "generator: DiffCSE edits sentences with a masked language model of the encoder's vocabulary: give "
            "--generator a Hub id or a directory (distilbert/distilbert-base-uncased for BERT, "
            "distilbert/distilroberta-base for RoBERTa), or --rtd_weight 0"
        )
    try:
        refuse_oversized_checkpoint(name, AutoModelForMaskedLM, revision=revision)
        generator, info = AutoModelForMaskedLM.from_pretrained(
            name,
            revision=revision,
            dtype=torch.float32,
            attn_implementation=recipe.attn_implementation,
            output_loading_info=True,
            **SAFELY,
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"generator: {name!r} could not be loaded as a masked language model ({one_line(error)}); "
            "give --generator a directory, or a Hub id with the network on"
        ) from error
    if lost := sorted(info["missing_keys"]):
        raise UserError(f"generator: {name!r} is no whole masked language model, it has no {', '.join(lost[:5])}")
    own = load_tokenizer(name, revision=revision)
    same_pieces = own.get_vocab() == tokenizer.get_vocab() and generator.config.vocab_size == config.vocab_size
    if not same_pieces or special_tokens(own) != special_tokens(tokenizer):
        raise UserError(
            f"generator: {name!r} has another vocabulary than {recipe.base_model!r}: give --generator a masked "
            "language model of the same tokenizer"
        )
    if Path(name).is_dir():
        generator.config.name_or_path = ""  # a path of this machine is not published
    return generator


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple:
    ids = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id)
    return ids, sorted(tokenizer.all_special_ids)


def masked_lm_heads(model: ForContrastiveLearning) -> dict[str, MaskedLMHead]:
    """Heads of a model that start from the base model's masked-LM head, by the key that asks for them."""
    keys = {"lm_head": "mlm_weight", "discriminator_lm_head": "prediction"}
    return {keys[name]: head for name, head in model.named_children() if isinstance(head, MaskedLMHead)}


def load_masked_lm_head(
    key: str, head: MaskedLMHead, backbone_config: PretrainedConfig, base_model: str, revision: str
) -> None:
    """Copy the base model's masked-LM head, where it has one, into a training head.

    Args:
        key: of the recipe, that asks for it.
    """
    names = {
        "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    }
    kind = backbone_config.model_type
    if kind not in names:
        raise UserError(f"{key}: the masked-LM head of a {kind} is not known, only {' and '.join(names)}")
    try:
        options = {"revision": revision, "output_loading_info": True, **SAFELY}
        source, info = AutoModelForMaskedLM.from_pretrained(base_model, **options)
    except (OSError, ValueError) as error:
        raise UserError(f"{key}: {base_model} has no masked-LM head ({one_line(error)})") from error
    state = source.state_dict()
    dense, norm, bias = names[kind]
    if f"{dense}.weight" in info["missing_keys"]:
        raise UserError(f"{key}: {base_model} has no masked-LM head")
    head.dense.load_state_dict({part: state[f"{dense}.{part}"] for part in ("weight", "bias")})
    head.layer_norm.load_state_dict({part: state[f"{norm}.{part}"] for part in ("weight", "bias")})
    head.decoder_bias.data.copy_(state[bias])
