"""Load a pre-trained encoder without running its code or reading a pickle."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from csezoo.modeling.contrastive.backbones import dropout_fields
from csezoo.modeling.contrastive.devices import forked_rng
from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel
from csezoo.modeling.methods.simcse import SimCSEConfig, SimCSEModel
from csezoo.modeling.serving.modeling_csezoo import CsezooModel, is_causal

from ..errors import UserError, as_user_error, library_errors
from ..hub import refuse_run_or_adapter
from .sizes import load_pretrained, refuse_oversized_checkpoint

logger = logging.getLogger(__name__)

# The keys of a configuration that describe the file, and change nothing that a model computes.
ABOUT_THE_FILE = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
# Padding may move a token's vector by at most this share of the root mean square. On tiny random encoders of 40
# architectures, rounding moves it by 1e-6, and architectures that do not mask padding move it by 3e-3 and more.
PADDING_MOVES = 1e-3
PADDED_BY = 8
KEYS_OF_THE_ZOO = {"auto_map", "csezoo", "output_hidden_states"}  # in the configuration of a repository's encoder
SENTENCE = "A small cat sees the old house near the river."


def load_backbone(base_model: str, **options: Any) -> PreTrainedModel:
    """Load a pre-trained encoder without its pre-training heads.

    Of a repository of the zoo it is the encoder. A warning names what else the repository serves, such as prefixes,
    that neither this encoder nor `served_encoder` has.

    Raises:
        UserError: the model cannot be found, is larger than memory, lacks tensors or is not an encoder.
    """
    refuse_run_or_adapter(base_model)
    with library_errors(
        f"{base_model!r} could not be loaded ({{error}}); give a directory, or a Hub id with the network "
        "on; `csezoo convert MODEL --as base --to DIR` makes safetensors of a pickle"
    ):
        content, _ = PretrainedConfig.get_config_dict(base_model, revision=options.get("revision"))
        missing: list[str] = []
        if "csezoo" in content:
            refuse_oversized_checkpoint(base_model, revision=options.get("revision"))
            backbone = _encoder_of(base_model, load_published(base_model, **options))
        else:
            backbone, missing = load_pretrained(AutoModel, base_model, **options)
    if missing := [name for name in missing if not name.startswith("pooler.")]:
        raise UserError(
            f"{base_model!r} lacks {len(missing)} tensors ({', '.join(missing[:5])}); give a complete checkpoint"
        )
    if backbone.config.is_encoder_decoder or backbone.config.to_dict().get("max_position_embeddings", 0) < 1:
        raise UserError(
            f"{base_model!r} ({backbone.config.model_type}) is not a single encoder or decoder, or its "
            "configuration has no max_position_embeddings; give one such as google-bert/bert-base-uncased"
        )
    if is_causal(backbone):
        backbone.config.use_cache = False  # keys and values of a text are not needed again
    return backbone


def encoder_around(backbone: PreTrainedModel, **keys: Any) -> SentenceEncoderModel:
    """Put the pooling that keys of a configuration name on an encoder, which stays as it was loaded."""
    with as_user_error(), no_init_weights():  # they would need the time and the memory of another model
        encoder = SimCSEModel(SimCSEConfig(backbone_config=backbone.config, **keys))
    # As it was loaded: casting a model to half precision would round the frequencies of its rotary positions too.
    encoder.backbone = backbone
    encoder.backbone.pooler = None
    return encoder.eval()


def _encoder_of(name: str, form: CsezooModel) -> PreTrainedModel:
    """Return the encoder of a published repository in its class of transformers."""
    values = form.config.backbone_config.to_dict()
    config = AutoConfig.for_model(**{key: values[key] for key in values.keys() - KEYS_OF_THE_ZOO})
    plain = AutoModel.from_config(
        config, dtype=form.dtype, attn_implementation=form.backbone.config._attn_implementation
    )
    plain.load_state_dict(form.backbone.state_dict())
    plain.add_module("pooler", None)  # a repository has one of zeros, because no model of the zoo has one
    plain_form = form.config.is_plain and "template" not in form.config.csezoo
    left = [] if plain_form else [layer["type"] for layer in form.config.csezoo.get("layers", [])]
    left += sorted({tensor.split(".")[0] for tensor in form.state_dict()} - {"backbone", "layers"})
    if left:
        logger.warning("%s: the encoder is loaded without the repository's %s", name, ", ".join(left))
    return plain.eval()


def run_once(name: str, run: Callable[[], object]) -> None:
    """Run a model once on a short text, because some configurations can be loaded, but not used."""
    with library_errors(f"{name} could not be run ({{error}}); check its config.json"), torch.no_grad():
        run()


def padding_moves(serving: SentenceEncoderModel, tokenizer: PreTrainedTokenizerBase) -> float:
    """Return how far padding moves the token vectors of a sentence, as a share of their root mean square.

    One sentence is encoded alone and padded, on the device of the model and in float32, because in half precision
    rounding moves a vector as much. The random state stays as it is.
    """
    ids = torch.tensor(tokenizer(SENTENCE, truncation=True).input_ids, device=serving.device)[None]  # (1, T)
    room = tokenizer.model_max_length - ids.shape[1]
    padded = torch.nn.functional.pad(ids, (0, min(PADDED_BY, room)), value=tokenizer.pad_token_id)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (0, padded.shape[1] - ids.shape[1]))
    was_training, computed = serving.training, serving.computes_padding
    with forked_rng(serving.device), torch.no_grad():
        serving.eval()
        serving.compute_padding()
        alone = serving.encode_tokens(ids, torch.ones_like(ids))[0].last_hidden_state
        beside = serving.encode_tokens(padded, mask)[0].last_hidden_state[:, : ids.shape[1]]
    serving.train(was_training)
    serving.compute_padding(computed)
    return float((beside - alone).abs().max() / alone.square().mean().sqrt())


def set_dropout(config: PretrainedConfig, probability: float) -> None:
    """Set every dropout probability of a configuration. A model must be built from it afterwards."""
    if not (names := dropout_fields(config)):
        raise UserError(f"dropout: the configuration of {config.model_type} has no dropout to set; leave it out")
    for name in names:
        setattr(config, name, probability)


def set_module_dropout(model: torch.nn.Module, probability: float) -> None:
    """Set every dropout module, including those that an architecture builds without its configuration."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = probability
