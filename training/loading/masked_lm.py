"""Load masked language models: the generator of DiffCSE, and the weights that some training heads start from."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from csezoo.modeling import SentenceEncoderConfig
from csezoo.modeling.contrastive.masked_language_modeling import MaskedLMHead, MaskedLMTransform

from ..errors import UserError, library_errors
from ..recipes import Recipe
from .sizes import load_pretrained
from .tokenizers import load_tokenizer, refuse_without_mask_token, special_tokens

logger = logging.getLogger(__name__)


def generator_of(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    config: SentenceEncoderConfig,
    given: PreTrainedModel | None = None,
) -> PreTrainedModel | None:
    """Return the masked language model that edits sentences, and tell the configuration its size.

    Args:
        given: that model, if it is loaded already. It may have any size, but must use the encoder's tokenizer.

    Returns:
        None for a method that needs none.

    Raises:
        UserError: there is none, or it cannot be found, lacks tensors or has another vocabulary.
    """
    if not config.needs_generator:
        if recipe.generator or given:
            logger.warning("generator has no effect: with these settings, %s does not read one", recipe.method)
        return None
    refuse_without_mask_token(str(recipe.base_model), tokenizer, "rtd_weight")
    generator = given or _load_generator(recipe, tokenizer)
    if generator.config.vocab_size != config.vocab_size:
        raise UserError(
            f"generator: it has {generator.config.vocab_size} word pieces and the encoder {config.vocab_size}; give a "
            "masked language model with the same tokenizer"
        )
    config.generator_config = generator.config
    return generator


def _load_generator(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    name, revision = recipe.generator, recipe.generator_revision or "main"
    if not name:
        raise UserError(
            "generator: DiffCSE needs a masked language model with the encoder's vocabulary; give --generator a Hub "
            "id or a directory (distilbert/distilbert-base-uncased for BERT, distilbert/distilroberta-base for "
            "RoBERTa), or --rtd_weight 0"
        )
    with library_errors(
        f"generator: {name!r} could not be loaded as a masked language model ({{error}}); give --generator a "
        "directory, or a Hub id with the network on; `csezoo convert MODEL --as base --to DIR` makes safetensors of a "
        "pickle"
    ):
        options = {"revision": revision, "dtype": torch.float32, "attn_implementation": recipe.attn_implementation}
        generator, missing = load_pretrained(AutoModelForMaskedLM, name, **options)
    if missing:
        raise UserError(
            f"generator: {name!r} is not a complete masked language model, it lacks {', '.join(missing[:5])}; give "
            "another --generator"
        )
    generator_tokenizer = load_tokenizer(name, revision=revision)
    same_pieces = generator_tokenizer.get_vocab() == tokenizer.get_vocab()
    if not same_pieces or special_tokens(generator_tokenizer) != special_tokens(tokenizer):
        raise UserError(
            f"generator: the vocabulary of {name!r} differs from that of {recipe.base_model!r}; give --generator a "
            "masked language model with the same tokenizer"
        )
    if Path(name).is_dir():
        generator.config.name_or_path = ""  # do not publish a path of this machine
    return generator


@torch.no_grad()
def load_masked_lm_head(
    key: str, head: MaskedLMTransform, backbone_config: PretrainedConfig, base_model: str, revision: str
) -> None:
    """Copy the base model's masked-LM head, or only its transform, into the head that a recipe key adds.

    The parts are found by their shapes: outside of the encoder, a dense layer, a layer norm and the decoder's bias. A
    head that has other parts is refused, because the copy would return other scores.
    """
    with library_errors(f"{key}: {base_model} has no masked-LM head ({{error}}); give another --base_model"):
        source, missing = load_pretrained(AutoModelForMaskedLM, base_model, revision=revision)
    kind = backbone_config.model_type
    if source.config.model_type != kind:
        raise UserError(f"{key}: the masked-LM transform of {base_model} does not fit this encoder ({kind})")
    size = source.config.vocab_size
    encoder = set(source.base_model.modules())
    outside = [(name, module) for name, module in source.named_modules() if module not in encoder]
    dense = [pair for pair in outside if isinstance(pair[1], torch.nn.Linear) and pair[1].out_features != size]
    norms = [pair for pair in outside if isinstance(pair[1], torch.nn.LayerNorm)]
    biases = [bias for _, module in outside for bias in module.parameters(recurse=False) if bias.shape == (size,)]
    if len(dense) != 1 or len(norms) != 1 or not biases:
        raise UserError(
            f"{key}: the masked-LM head of {base_model} ({kind}) is not a dense layer, a layer "
            f"norm and a decoder; set {key} to its default"
        )
    (dense_name, source_dense), (norm_name, source_norm) = dense[0], norms[0]
    if {f"{dense_name}.weight", f"{norm_name}.weight"} & set(missing):
        raise UserError(f"{key}: {base_model} has no masked-LM head; give another --base_model")
    for part, of_source in ((head.dense, source_dense), (head.layer_norm, source_norm)):
        torch.nn.init.zeros_(part.bias)  # ModernBERT's parts have no biases
        part.load_state_dict(of_source.state_dict(), strict=False)
    if isinstance(head, MaskedLMHead):
        head.decoder_bias.copy_(biases[0])
