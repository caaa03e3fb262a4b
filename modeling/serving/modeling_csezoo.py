"""The class of a published repository: the encoder, its pooling and the layers after it, and `encode`.

The repository is a plain encoder with the modules of sentence-transformers. This class reads the same files, and adds
to `AutoModel` what those modules add to `SentenceTransformer`.
"""

import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AutoModel, PretrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.modeling_utils import load_state_dict, safe_save_file
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import cached_file, logging

from .configuration_csezoo import PLAIN, CsezooConfig
from .encoding_csezoo import SIMILARITIES, EncodesTexts
from .fingerprint_csezoo import FINGERPRINT_NAME, new_fingerprint, verify_fingerprint
from .pooling_csezoo import (
    LAYERS,
    OTHER_LAYER,
    POOLINGS,
    BackboneOutput,
    as_words,
    build_layers,
    layer_weights,
    modules_on_top,
    size_after,
)
from .quantization_csezoo import PRECISIONS  # noqa: F401 (transformers 4 copies only the files imported here)

logger = logging.get_logger(__name__)
# Options of `from_pretrained` that locate a repository, and with it its tokenizer and its other files.
WHERE_FROM = ("revision", "subfolder", "cache_dir", "token", "local_files_only")
SETTINGS_NAME = "config_sentence_transformers.json"
CODE = ("configuration", "modeling", "encoding", "fingerprint", "pooling", "quantization")
# What a module of sentence-transformers does if its configuration does not say otherwise.
WORDS = "sentence_embedding"
NEUTRAL = {"use_residual": False, "include_prompt": True, "module_input_name": WORDS, "module_output_name": WORDS}
# What it is told of the model as a whole.
FOLLOWED = ("truncate_dim", "prompts", "default_prompt_name", "similarity_fn_name")
PUT_BACK = "put back the file that was changed"
Loaded = TypeVar("Loaded", bound="CsezooModel")


def is_causal(backbone: nn.Module) -> bool:
    """Return whether a token sees only the tokens before it."""
    return any(vars(module).get("is_causal", False) for module in backbone.modules())


class CsezooModel(EncodesTexts):
    """A sentence encoder that was trained with the zoo. It maps each sentence to a vector.

    Example:
        `AutoModel.from_pretrained("ORG/NAME", trust_remote_code=True).encode(["A cat sits.", "A dog runs."])`
    """

    config_class = CsezooConfig
    base_model_prefix = "backbone"  # transformers then reads the encoder's own names
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _keys_to_ignore_on_load_missing: list[str] | None = [r"^layers\."]  # they are in the folders of the modules
    code: tuple[str, ...] = CODE
    auto_map = PLAIN
    poolings: tuple[str, ...] = (*POOLINGS, "prompt")
    known_layers = LAYERS
    # What sentence-transformers reads: the module of the encoder, its settings, and settings of the whole model.
    encoder_module = "sentence_transformers.models.Transformer"
    encoder_settings: dict[str, Any] = {"do_lower_case": False}
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }

    def __init__(self, config: CsezooConfig):
        attention = config._attn_implementation
        super().__init__(config)
        if (pooling := config.csezoo["pooling"]) not in self.poolings:
            raise ValueError(f"config.json: pooling: {pooling!r} must be one of {', '.join(self.poolings)}")
        if config.is_plain:  # `AutoModel` would make this class again
            config._attn_implementation = attention  # for the family to choose, which may not have what this class has
            self.backbone = MODEL_MAPPING[config.family]._from_config(config)  # type: ignore[attr-defined]
        else:
            self.backbone = AutoModel.from_config(config.backbone_config)
        self.causal = is_causal(self.backbone)
        self.layers = build_layers(config.csezoo.get("layers", []), self.known_layers)
        self.named_prompts = config.csezoo.get("prompts", {})
        self.default_prompt_name = config.csezoo.get("default_prompt_name")
        self.similarity_fn_name = config.csezoo.get("similarity", "cosine")
        self.loaded_from: dict[str, Any] = {}
        self.post_init()

    @property
    def pooling(self) -> str:
        return self.config.csezoo["pooling"]

    @property
    def mask_token_id(self) -> int:
        return self.config.csezoo.get("mask_token_id")  # tracing reads every property, also without one

    @property
    def embedding_size(self) -> int:
        csezoo = self.config.csezoo
        size = size_after(csezoo.get("layers", []), self.config.hidden_size)
        return min(csezoo.get("truncate_dim") or size, size)

    def _settings(self) -> dict[str, Any]:
        """Return what `SentenceTransformer` reads of the model as a whole."""
        told = {"default_prompt_name": self.default_prompt_name, "similarity_fn_name": self.similarity_fn_name}
        prompts = {"prompts": self.named_prompts} if self.named_prompts else {}
        cut = {key: value for key, value in self.config.csezoo.items() if key == "truncate_dim"}
        return {**self.settings, **told, **prompts, **cut}

    def _follow(self, settings: dict[str, Any]) -> None:
        """Take over what a `SentenceTransformer` was saved with."""
        prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
        similarity = settings.get("similarity_fn_name") or "cosine"
        texts = prompts.values() if isinstance(prompts, dict) else [None]
        if similarity not in list(SIMILARITIES) or not all(isinstance(text, str) for text in texts):
            return  # it is refused
        self.named_prompts = {} if prompts == self.settings["prompts"] else prompts
        self.default_prompt_name, self.similarity_fn_name = default, similarity
        told = {"prompts": self.named_prompts or None, "default_prompt_name": default, "similarity": similarity}
        csezoo = {**self.config.csezoo, **told, "truncate_dim": settings.get("truncate_dim")}
        self.config.csezoo = {key: value for key, value in csezoo.items() if value is not None}

    def map_vectors(
        self, pooled: torch.Tensor, input_ids: torch.Tensor | None, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        for layer in self.layers:
            pooled = layer(pooled)
        return pooled

    def run_backbone(self, attention_mask: torch.Tensor, **inputs: Any) -> BackboneOutput:
        """Run the encoder on tokens `(B, T)`."""
        return self.backbone(attention_mask=attention_mask, return_dict=True, **inputs)

    @classmethod
    def from_pretrained(cls: type[Loaded], pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Loaded:
        """Load a repository of the zoo. All options of `PreTrainedModel.from_pretrained` work.

        Raises:
            ValueError: a tensor is missing, unexpected or of another shape, or `config.json`, `modules.json` and the
                tokenizer do not agree. The message names both sides.
            OSError: a file is missing. Weights are safetensors, and pickles are never read.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        config = kwargs.get("config")
        if isinstance(config, PretrainedConfig) and not isinstance(config, CsezooConfig):  # was loaded without trust
            attention = config._attn_implementation
            kwargs["config"] = CsezooConfig.from_dict(config.to_dict(), attn_implementation=attention)
        # Accept shapes that do not match here, to name them below.
        kwargs |= {"ignore_mismatched_sizes": True, "output_loading_info": True, "use_safetensors": True}
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model, info = loaded
        name = str(pretrained_model_name_or_path)
        place = os.path.abspath(name) if os.path.isdir(name) else name  # the working directory may change
        model.loaded_from = {"path_or_repo_id": place} | {key: kwargs[key] for key in WHERE_FROM if key in kwargs}
        elsewhere = ("layers.",) if model.config.is_plain else ()  # in the folders of the modules
        problems = [f"missing {key}" for key in sorted(info["missing_keys"]) if not key.startswith(elsewhere)]
        problems += [f"unexpected {key}" for key in sorted(info["unexpected_keys"])]
        problems += sorted(f"mis-shaped {key}" for key, *_ in info["mismatched_keys"])
        if problems:
            raise ValueError(f"{name} does not fit its config.json: {', '.join(problems)}")
        model._read_tokenizer(place)
        model._read_modules(place)
        return loaded if wants_info else model

    def __getstate__(self) -> dict[str, Any]:
        """Leave the token of the Hub out of pickles."""
        where = {key: value for key, value in self.loaded_from.items() if key != "token"}
        return {**vars(self), "loaded_from": where}

    def repository_file(self, name: str) -> str | None:
        """Return the path of a file of the repository that the model was loaded from, or None if it has none."""
        where = dict(self.loaded_from)
        missing = ("_raise_exceptions_for_missing_entries", "_raise_exceptions_for_gated_repo")
        return cached_file(where.pop("path_or_repo_id"), name, **where, **dict.fromkeys(missing, False))

    def _read_tokenizer(self, repository: str) -> None:
        """Load the tokenizer, because the repository may have moved when it is needed. Check its template."""
        csezoo, where = self.config.csezoo, dict(self.loaded_from)
        if self.repository_file("tokenizer.json"):
            # Only the generic class keeps a prompt in its post-processor.
            self.tokenizer = PreTrainedTokenizerFast.from_pretrained(where.pop("path_or_repo_id"), **where)
        template, mask = csezoo.get("template", {"text": "", "before": [], "after": []}), csezoo.get("mask_token_id")
        before, after = template["before"], template["after"]
        ids = self.tokenizer("a").input_ids if self.tokenizer else []
        fits = ids[: len(before)] == before and ids[len(ids) - len(after) :] == after
        if not fits or (csezoo["pooling"] == "prompt" and mask not in [*before, *after]):
            raise ValueError(
                f"{repository}: config.json has the template {template['text']!r:.80} and the mask token {mask}, "
                f"which the template in tokenizer.json does not contain; {PUT_BACK}"
            )

    def _read_modules(self, repository: str) -> None:
        """Load the layers after the pooling, and compare what `SentenceTransformer` reads with `config.json`."""
        listed, described = self._json_file("modules.json", list), list(self._modules_on_top())
        if odd := [each for each in listed if not (isinstance(each, dict) and is_inside(each.get("path")))]:
            raise ValueError(f"{repository}: modules.json has {odd[0]!r:.80}, which is no module in it; {PUT_BACK}")
        kinds = [str(module.get("type")).rpartition(".")[2] for module in listed]
        if listed and listed[0]["path"]:
            kinds[0] += f" in {listed[0]['path']}"
        names = [name for name, _ in described]
        if kinds != ["Transformer", *names]:
            raise ValueError(
                f"{repository}: config.json has {' - '.join(names) or 'nothing'} after the encoder, "
                f"modules.json has {' - '.join(kinds[1:]) or 'nothing'} after {(kinds or ['nothing'])[0]}; {PUT_BACK}"
            )
        settings = self._json_file(SETTINGS_NAME)
        if self.config.is_plain and not self.repository_file(FINGERPRINT_NAME):  # sentence-transformers has saved it
            self._follow(settings)
        expected = self._settings()
        for key in FOLLOWED:
            check_equal(f"{repository}: {SETTINGS_NAME}", key, settings.get(key), expected.get(key))
        layers = iter(self.layers)
        for module, (name, content) in zip(listed[1:], described, strict=True):
            file, weights = f"{module['path']}/config.json", f"{module['path']}/model.safetensors"
            found = as_words(self._json_file(file))
            for key, value in {**NEUTRAL, **as_words(content)}.items():
                read = NEUTRAL.get(key) if found.get(key) is None else found[key]
                check_equal(f"{repository}: {file}", key, read, value)
            if name in self.known_layers:
                layer = next(layers)
                layer.load_state_dict(self._tensors(repository, weights, layer.state_dict()))
            elif name == "WeightedLayerPooling":
                fixed = self._layer_weights()
                states = (self._tensors(repository, weights, fixed), fixed)
                check_equal(f"{repository}: {weights}", "weights", *(of["layer_weights"].tolist() for of in states))

    def _tensors(self, repository: str, name: str, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors of a module, which must have these names and shapes."""
        file = self.repository_file(name)
        tensors = load_state_dict(file) if file else {}
        shapes = ({key: tuple(state[key].shape) for key in sorted(state)} or None for state in (tensors, like))
        check_equal(f"{repository}: {name}", "tensors", *shapes)
        return {key: tensor.to(self.dtype) for key, tensor in tensors.items()}

    def _json_file(self, name: str, kind: type = dict) -> Any:
        """Return the content of a JSON file of the repository, an empty one if there is none."""
        file = self.repository_file(name)
        try:
            content = json.loads(Path(file).read_text(encoding="utf-8")) if file else kind()
            if not isinstance(content, kind):
                raise ValueError(f"it has no {kind.__name__}")
        except ValueError as error:
            raise ValueError(f"{self.loaded_from['path_or_repo_id']}: {name} cannot be read: {error}") from None
        return content

    def _modules_on_top(self) -> Iterator[tuple[str, dict[str, Any]]]:
        config = self.config
        for name, described in modules_on_top(config.csezoo, config.hidden_size, config.num_hidden_layers):
            yield name, described | (self._word_weights() if name == "WordWeights" else {})

    def _word_weights(self) -> dict[str, Any]:
        tokenizer = self.own_tokenizer()
        vocabulary: Any = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        return {"vocab": vocabulary, "word_weights": {vocabulary[self.mask_token_id]: 1.0}}

    def _layer_weights(self) -> dict[str, torch.Tensor]:
        return {"layer_weights": layer_weights(self.pooling, self.config.num_hidden_layers)}

    def verify(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[str]:
        """Compare the repository with its fingerprint: the token ids and vectors of a few sentences when it was saved.

        The vectors are computed from the stored token ids. An error therefore names what differs: the tokenizer, or
        the model (its weights, its configuration, the code or the libraries).

        Args:
            tokenizer: that of the repository by default.

        Returns:
            One line for each thing that was compared.

        Raises:
            ValueError: something differs. The message names the sentences and the difference. The elements of a
                vector may differ by 1e-4 of their root mean square, in float16 by 0.05 and in bfloat16 by 0.2.
            OSError: the repository has no fingerprint.

        Example:
            `model.verify()`
        """
        fingerprint = self._json_file(FINGERPRINT_NAME) if self.loaded_from else {}
        if not fingerprint:
            raise OSError(f"{FINGERPRINT_NAME}: the model was loaded from no repository that has one")
        return verify_fingerprint(self, tokenizer or self.own_tokenizer(), fingerprint)

    def save_pretrained(  # type: ignore[override]  # further positional options depend on the version
        self,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save the model as a complete repository. All options of `PreTrainedModel.save_pretrained` work.

        The repository has the model's code, the modules of sentence-transformers, and the tokenizer that the model was
        loaded with or that is set as `tokenizer`. Its fingerprint is renewed, without the checksums of files that a
        published repository has. If it cannot be renewed, a warning says so.
        """
        if self._hf_peft_config_loaded:  # an adapter is not a complete model
            super().save_pretrained(save_directory, is_main_process, state_dict, push_to_hub=push_to_hub, **kwargs)
            return
        if push_to_hub:
            options = {name: kwargs.pop(name) for name in ("token", "private", "revision") if name in kwargs}
            name = kwargs.pop("repo_id", None) or Path(save_directory).name
            message = {key: kwargs.pop(key) for key in ("commit_message", "create_pr") if key in kwargs}
            self.save_pretrained(save_directory, is_main_process, state_dict, **kwargs)
            self.push_to_hub(name, **options, **message)  # type: ignore[arg-type]  # a decorator hides `self`
            return
        state = self.state_dict() if state_dict is None else state_dict
        self.config.auto_map = dict(self.auto_map)
        if self.config.is_plain:
            self.config.output_hidden_states = self.pooling in OTHER_LAYER
            own = {name.removeprefix("backbone."): state[name] for name in state if name.startswith("backbone.")}
            self.backbone.save_pretrained(save_directory, is_main_process, own, **kwargs)
        else:
            self.config.backbone_config.vocab_size = self.get_input_embeddings().num_embeddings  # it may be resized
            super().save_pretrained(save_directory, is_main_process, state, **kwargs)
        if is_main_process:
            self._complete(Path(save_directory), state, renew=state_dict is None)

    def _complete(self, directory: Path, state: dict[str, torch.Tensor], renew: bool) -> None:
        """Add what transformers does not write; `renew` the fingerprint if `state` are the tensors of this object."""
        for name in self.code:
            if (file := Path(__file__).with_name(f"{name}_csezoo.py")) != directory / file.name:
                shutil.copy(file, directory)
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        _add_rotary_names(config.get("backbone_config", config))
        _write_json(directory / "config.json", config)
        self._write_modules(directory, state)
        if self.tokenizer is None:
            logger.warning(f"{directory}: no tokenizer was saved, because the model was loaded without one")
        else:
            save_tokenizer(directory, self.tokenizer)
        if not renew or self.tokenizer is None:
            (directory / FINGERPRINT_NAME).unlink(missing_ok=True)
            logger.warning(f"{directory}: {FINGERPRINT_NAME} was not renewed, so verify() cannot check this model")
            return
        exact = self.dtype == torch.float32 and self.device.type == "cpu"
        saved = self if exact else type(self).from_pretrained(directory, dtype=torch.float32)
        _write_json(directory / FINGERPRINT_NAME, new_fingerprint(saved, self.tokenizer))

    def _write_modules(self, directory: Path, state: dict[str, torch.Tensor]) -> None:
        """Write the modules of sentence-transformers, by names that every version knows."""
        modules = [{"idx": 0, "name": "0", "path": "", "type": self.encoder_module}]
        position = 0  # among the layers
        for number, (name, config) in enumerate(self._modules_on_top(), start=1):
            # Text Embeddings Inference reads the folder `1_Pooling`, whatever `modules.json` says, and takes the first
            # token's vector if there is none. With a module there that it does not know, it refuses to start.
            folder = f"{number}_{'Pooling' if number == 1 else name}"
            kind = f"sentence_transformers.models.{name}"
            modules.append({"idx": number, "name": str(number), "path": folder, "type": kind})
            (directory / folder).mkdir(exist_ok=True)
            tensors: dict[str, torch.Tensor] = {}
            if name == "WeightedLayerPooling":
                tensors = self._layer_weights()
            elif name in self.known_layers:
                start = f"layers.{position}."
                tensors = {key.removeprefix(start): state[key] for key in state if key.startswith(start)}
                position += 1
            _write_json(directory / folder / "config.json", config)
            if tensors:
                made = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
                safe_save_file(made, directory / folder / "model.safetensors", metadata={"format": "pt"})
        longest = self.tokenizer.model_max_length if self.tokenizer else self.config.max_position_embeddings
        _write_json(directory / "modules.json", modules)
        _write_json(directory / "sentence_bert_config.json", {"max_seq_length": longest, **self.encoder_settings})
        settings, file = self._settings(), directory / SETTINGS_NAME
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if lost := [key for key in FOLLOWED if found.get(key, settings.get(key)) != settings.get(key)]:
            logger.warning(
                f"{file}: {', '.join(lost)} are those of the model again; to change them, load the repository with "
                "SentenceTransformer without trust_remote_code, and save that"
            )
        _write_json(file, settings)


def is_inside(path: Any) -> bool:
    """Return whether a path that a repository names stays inside of it."""
    return isinstance(path, str) and not Path(path).is_absolute() and ".." not in Path(path).parts


def check_equal(file: str, key: str, found: Any, expected: Any) -> None:
    """Refuse a file of a repository that does not agree with `config.json`."""
    if found != expected:
        has = f"is missing or has no {key}" if found is None else f"has {key}: {found!s:.80}"
        raise ValueError(f"{file} {has}, config.json has {expected!s:.80}; {PUT_BACK}")


def save_tokenizer(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a tokenizer, naming the generic fast class as every version of transformers knows it."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.backend_tokenizer.no_truncation()  # what the last call left
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if key not in ("is_local", "local_files_only")}
    _write_json(path, {**config, "tokenizer_class": "PreTrainedTokenizerFast"})


def _add_rotary_names(config: dict[str, Any]) -> None:
    """Say how an encoder rotates positions by the names of transformers 4 too, which ignores `rope_parameters`."""
    rope, modern = config.get("rope_parameters") or {}, config["model_type"] == "modernbert"
    whole, local = rope.get("full_attention", rope), rope.get("sliding_attention")
    names = ("global_rope_theta", "local_rope_theta") if modern else ("rope_theta", "rope_local_base_freq")
    config |= {name: of["rope_theta"] for name, of in zip(names, (whole, local), strict=True) if of}
    if whole.get("rope_type", "default") != "default":
        config["rope_scaling"] = {key: value for key, value in whole.items() if key != "rope_theta"}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
