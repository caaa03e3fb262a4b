"""How a repository of sentence-transformers serves its encoder; a run follows it where its recipe says nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from csezoo.modeling.contrastive.allowed_values import check_named_prompts
from csezoo.modeling.contrastive.backbones import longest_input
from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.serving.encoding_csezoo import SIMILARITIES, EncodesTexts
from csezoo.modeling.serving.modeling_csezoo import SETTINGS_NAME
from csezoo.modeling.serving.pooling_csezoo import ACTIVATIONS, LAYERS, POOLINGS, as_words, size_after

from ..errors import UserError, one_line, quoted
from ..files import read_json
from ..hub import listed_modules, may_exist, repository_file, stated_in_card
from ..recipes import Recipe, file_name, make_recipe
from ..recipes.reading import as_word
from .backbones import encoder_around, load_backbone
from .templates import own_ends, serving_tokenizer
from .tokenizers import load_tokenizer

logger = logging.getLogger(__name__)
# The file with the settings of the encoder, by the names that sentence-transformers has given it.
ENCODER_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Settings of the encoder that change its tokens or its configuration.
LOADER_OPTIONS = (
    *("processing_kwargs", "processor_kwargs", "tokenizer_args", "tokenizer_name_or_path"),
    *("config_args", "config_kwargs", "query_length", "document_length"),
)
# Why a module of sentence-transformers cannot be taken over.
OTHER_MODULES = {
    "Router": "it encodes queries and documents by different modules",
    "Asym": "it encodes queries and documents by different modules",
    "CLIPModel": "it also encodes images",
    "CNN": "it trains convolutions between the encoder and its pooling",
    "LSTM": "it trains a recurrent network between the encoder and its pooling",
    "BoW": "its vectors count words",
    "StaticEmbedding": "its tokens have fixed vectors and no encoder",
    "WordEmbeddings": "its words have fixed vectors and no encoder",
    "MLMTransformer": "its vectors are sparse",
    "SpladePooling": "its vectors are sparse",
    "SparseAutoEncoder": "its vectors are sparse",
}
OTHER_POOLINGS = {
    "mean_sqrt_len_tokens": "it divides by the square root of the length",
    "weightedmean_tokens": "it weighs tokens by their position",
    "weightedmean": "it weighs tokens by their position",
    "mean_sqrt_len": "it divides by the square root of the length",
}
SERVED_POOLINGS = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}


@dataclass(frozen=True)
class ServedEncoder:
    """How a repository serves its encoder.

    Args:
        keys: the keys of a recipe that say the same.
        layers: the layers between the pooling and a last Normalize, as in `CsezooConfig`.
        folders: of these layers in the repository.
    """

    name: str
    keys: dict[str, Any]
    layers: list[dict[str, Any]]
    folders: list[str]

    def load_layers(self, layers: nn.ModuleList, revision: str | None = None) -> None:
        """Copy the weights of the repository's layers, or refuse files that are missing or have other tensors."""
        for layer, folder in zip(layers, self.folders, strict=True):
            if not (expected := {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}):
                continue
            file = repository_file(self.name, f"{folder}/model.safetensors", revision)
            if file is None:
                raise _refused(self.name, f"{folder} has no model.safetensors (a pickle is never read); save it again")
            try:
                tensors = load_file(file)
            except (OSError, SafetensorError) as error:
                raise _refused(self.name, f"{folder}/model.safetensors cannot be read ({one_line(error)})") from error
            if (found := {name: tuple(tensor.shape) for name, tensor in tensors.items()}) != expected:
                raise _refused(self.name, f"{folder}/model.safetensors has {found}, its config.json means {expected}")
            layer.load_state_dict(tensors)


def _refused(name: str, reason: str) -> UserError:
    return UserError(f"base_model: {name}: {reason}; give another --base_model, or a copy of its encoder alone")


def served_encoder(name: str, revision: str | None = None) -> ServedEncoder | None:
    """Read how a repository serves its encoder. This reads small files only.

    Returns:
        None for a bare encoder, and for a repository of the zoo that more than modules of sentence-transformers serve
        (a template, prefixes): training starts from its encoder alone.

    Raises:
        UserError: the repository cannot be taken over, with the reason.
    """

    def content(file: str) -> Any:
        path = repository_file(name, file, revision)
        return read_json(path) if path else {}

    config = content("config.json")
    zoo = config.get("csezoo")
    if isinstance(zoo, dict) and ("template" in zoo or config.get("model_type") == "csezoo"):
        return None
    if not (modules := listed_modules(name, revision)):
        return None
    kinds, folders = [], []
    for module in modules:
        if not module["type"].startswith("sentence_transformers."):  # code of the repository's own
            raise _refused(name, f"its {module['type']} is no module of sentence-transformers")
        if (kind := module["type"].rpartition(".")[2]) != "Dropout":  # it only acts in training
            kinds.append(kind)
            folders.append(module["path"])
    if kinds[:1] != ["Transformer"]:
        found = kinds[0] if kinds else "Dropout"
        raise _refused(name, f"its {found} cannot be taken over ({OTHER_MODULES.get(found, 'unknown here')})")
    if folders[0]:
        raise _refused(name, f"its encoder is in the folder {folders[0]}; load and save it with sentence-transformers")
    pooling = None
    if zoo and kinds[1:2] == ["WeightedLayerPooling"]:
        pooling, kinds, folders = zoo["pooling"], kinds[:1] + kinds[2:], folders[:1] + folders[2:]
    if kinds[1:2] != ["Pooling"]:
        found = kinds[1] if len(kinds) > 1 else "nothing"
        raise _refused(name, f"its encoder is followed by {found} ({OTHER_MODULES.get(found, 'not by a Pooling')})")
    size = config.get("hidden_size", config.get("dim"))  # in DistilBERT
    settings = content(SETTINGS_NAME)
    layers: list[dict[str, Any]] = []
    prompts = _prompts(name, settings)
    has_prompts = prompts["named_prompts"] is not None
    told = _pooling(name, folders[1], content(f"{folders[1]}/config.json"), size, has_prompts)
    for kind, folder in zip(kinds[2:], folders[2:], strict=True):
        layers.append(_layer(name, kind, folder, content(f"{folder}/config.json"), size_after(layers, size)))
    normalize = bool(layers) and layers[-1]["type"] == "Normalize"
    layers, folders = (layers[:-1], folders[2:-1]) if normalize else (layers, folders[2:])
    encoder: dict[str, Any] = next((found for file in ENCODER_SETTINGS if (found := content(file))), {})
    if options := [key for key in LOADER_OPTIONS if encoder.get(key) and not _is_trust(encoder[key])]:
        raise _refused(name, f"its encoder is loaded with {options[0]} {quoted(encoder[options[0]])}")
    keys = {
        "pooling": pooling or told,
        "projection": "none",
        "normalize": normalize,
        "lower_case": encoder.get("do_lower_case") is True,
        **_lengths(name, encoder, content("tokenizer_config.json"), config),
        **prompts,
        "similarity": settings.get("similarity_fn_name") or "cosine",
        "truncate_dim": settings.get("truncate_dim"),
    }
    if keys["similarity"] not in list(SIMILARITIES):  # a list has no hash; so it is compared, here and below
        raise _refused(name, f"its similarity {quoted(keys['similarity'])} is none of {', '.join(SIMILARITIES)}")
    cut = keys["truncate_dim"]
    if cut is not None and not (isinstance(cut, int) and cut >= 1):
        raise _refused(name, f"{SETTINGS_NAME} has truncate_dim: {quoted(cut)}, which is no number of dimensions")
    return ServedEncoder(name, keys, layers, folders)


def _is_trust(options: Any) -> bool:
    """Return whether options only let code of the repository run, which is refused elsewhere."""
    return isinstance(options, dict) and options.keys() <= {"trust_remote_code"}


def _pooling(name: str, folder: str, config: dict[str, Any], size: Any, has_prompts: bool) -> str:
    if not config:
        raise _refused(name, f"{folder}/config.json is missing")
    words = as_words(config)
    mode = words.get("pooling_mode")
    if not isinstance(mode, str) or mode not in SERVED_POOLINGS:  # several poolings are a list
        why = OTHER_POOLINGS.get(str(mode), "the zoo has one of " + ", ".join(POOLINGS))
        raise _refused(name, f"its pooling {quoted(mode)} cannot be taken over ({why})")
    if words.get("word_embedding_dimension", size) != size:
        wrong = words["word_embedding_dimension"]
        raise _refused(name, f"{folder}/config.json is for {quoted(wrong)} dimensions, its encoder has {size}")
    if config.get("include_prompt") is False and has_prompts:
        raise _refused(name, "its pooling leaves out the tokens of a prompt, which the zoo's poolings do not")
    return SERVED_POOLINGS[mode]


def _layer(name: str, kind: str, folder: str, config: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the description of a layer after the pooling."""
    if kind not in LAYERS:
        raise _refused(name, f"its {kind} cannot be taken over ({OTHER_MODULES.get(kind, 'unknown here')})")
    of_words = [config.get(key) or "sentence_embedding" for key in ("module_input_name", "module_output_name")]
    if of_words != ["sentence_embedding"] * 2:
        raise _refused(name, f"its {kind} in {folder} maps other things than sentence embeddings")
    if config.get("use_residual"):
        raise _refused(name, f"its {kind} in {folder} adds what it reads to what it computes")
    if kind == "Normalize":
        return {"type": kind}
    if kind == "LayerNorm":
        if config.get("dimension") != size:
            raise _refused(name, f"{folder} is for {quoted(config.get('dimension'))} dimensions, it gets {size}")
        return {"type": kind, "dimension": size}
    described = {key: config.get(key) for key in ("in_features", "out_features", "bias", "activation_function")}
    if described["in_features"] != size:
        raise _refused(name, f"{folder} is for {quoted(described['in_features'])} dimensions, it gets {size}")
    if not (isinstance(described["out_features"], int) and described["out_features"] > 0):
        raise _refused(name, f"{folder} makes {quoted(described['out_features'])} dimensions")
    if described["activation_function"] not in list(ACTIVATIONS):
        known = ", ".join(activation.rpartition(".")[2] for activation in ACTIVATIONS)
        raise _refused(name, f"the activation of {folder}, {quoted(described['activation_function'])}, is not {known}")
    return {"type": kind, **described, "bias": described["bias"] is not False}


def _lengths(
    name: str, encoder: dict[str, Any], tokenizer: dict[str, Any], config: dict[str, Any]
) -> dict[str, int | None]:
    """Return the longest text in training and of the served model, in word pieces with special tokens."""
    positions = config.get("max_position_embeddings")
    most = positions if isinstance(positions, int) else 10**6  # a tokenizer without a length has a larger number
    lengths = (encoder.get("max_seq_length"), tokenizer.get("model_max_length"))
    longest = next((length for length in lengths if isinstance(length, int) and length <= most), None)
    if longest is None:
        return {}
    if longest < 3:
        raise _refused(name, f"its longest text, {longest} pieces, has no place for a word")
    return {"max_length": longest, "served_length": longest}


def given_prompts(prompts: dict[str, str], default: str | None) -> dict[str, str] | None:
    """Return prompts, or None if they are the two empty ones that sentence-transformers writes for a model without."""
    return prompts if default or any(prompts.values()) else None


def _prompts(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    try:
        check_named_prompts(prompts, default)
    except ValueError as error:
        raise _refused(name, one_line(error)) from None
    return {"named_prompts": given_prompts(prompts, default), "default_prompt_name": default}


def follow_base(recipe: Recipe) -> tuple[Recipe, ServedEncoder | None]:
    """Return a recipe with the keys that the repository of its base model tells, and what else it tells.

    A key that the recipe's file or the command line sets is stronger than the repository, whatever it is for, and is
    named. A key that neither sets is the repository's. A bare encoder tells the license and the language of its card.

    Raises:
        UserError: the repository cannot be taken over, with the reason.
    """
    if (base := recipe.base_model) is None:
        return recipe, None
    name = file_name(base)
    from_card: dict[str, Any] = {}
    for key, value in stated_in_card(base, recipe.base_revision).items():
        used = getattr(recipe, key)
        if key in recipe.given and used != value:
            logger.warning("%s: %s is used; the card of %s states %s", key, _shown(used), name, _shown(value))
        elif used != value:
            logger.info("%s: %s, as the card of %s states", key, _shown(value), name)
            from_card[key] = value
    recipe = replace(recipe, **from_card)
    served = served_encoder(base, recipe.base_revision)
    if served is None:
        if may_exist(base, "modules.json", recipe.base_revision):
            logger.warning(
                "the Hub does not answer, and the cache does not say how %s is served; it is read as a bare encoder",
                base,
            )
        return recipe, None
    own = {**recipe.to_dict(), "name": recipe.name}
    taken = {key: value for key, value in served.keys.items() if key not in recipe.given}
    for key, value in served.keys.items():
        if key in recipe.given and own[key] != value:
            logger.warning("%s: %s is used; %s is served with %s", key, _shown(own[key]), name, _shown(value))
    told = [f"{key} {_shown(value)}" for key, value in taken.items() if value not in (None, False)]
    if told:
        logger.info("as %s is served: %s", name, ", ".join(told))
    return make_recipe({**own, **taken}), served


def _shown(value: Any) -> str:
    return as_word(value)[:60]


@torch.no_grad()
def load_as_served(name: str, revision: str | None, served: ServedEncoder | None) -> EncodesTexts | None:
    """Load a base model as it is served, with its tokenizer; None for a bare encoder, which nobody serves."""
    if served is None:
        config_file = repository_file(name, "config.json", revision)
        zoo = config_file and "csezoo" in read_json(config_file)
        return load_published(name, revision=revision or "main").eval() if zoo else None
    of_run = ("max_length", "served_length", "lower_case")
    keys = {key: value for key, value in served.keys.items() if key not in of_run}
    backbone = load_backbone(name, revision=revision or "main", dtype=torch.float32)
    encoder = encoder_around(backbone, base_layers=served.layers, **keys)
    served.load_layers(encoder.base_layers, revision)
    tokenizer = load_tokenizer(name, lower_case=served.keys["lower_case"], revision=revision or "main")
    longest = min(longest_input(backbone), served.keys.get("served_length") or longest_input(backbone))
    encoder.tokenizer = serving_tokenizer(tokenizer, own_ends(tokenizer), max_length=longest)
    return encoder
