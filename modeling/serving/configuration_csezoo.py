"""The configuration of a published repository: the encoder's own, and under one key what the zoo's class needs."""

from functools import cache
from typing import Any, ClassVar

from transformers import AutoConfig, BertConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.versions import require_version

require_version("transformers>=4.57")  # checked here because a repository's code imports this file first

# The classes of a repository that is a plain encoder, and those of any other.
PLAIN = {"AutoConfig": "configuration_csezoo.CsezooConfig", "AutoModel": "modeling_csezoo.CsezooModel"}
OWN_FORM = {**PLAIN, "AutoModel": "own_form_csezoo.CsezooOwnFormModel"}
SIZES = ("hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size")  # that libraries read


class CsezooConfig(PretrainedConfig):
    """The configuration of a sentence encoder of the zoo.

    A repository that is a plain encoder has the `config.json` of its family, with the key `csezoo` added. Its
    configuration is of the family's class and of this one. What has no plain form has the model type `csezoo`, and the
    family's configuration in `backbone_config`.

    Args:
        backbone_config: configuration of the encoder, or its dict.
        csezoo: what follows the encoder. `method` is what it was trained with. `pooling` is one of `pool`'s modes, or
            `prompt` with the id `mask_token_id`. `layers` are the modules after the pooling, each with its `type` and
            arguments, see `pooling_csezoo.LAYERS`; the first `base_layers` of them were there before training.
            `truncate_dim` cuts the vectors. `prompts` are texts that `encode` puts in front of a text, by name, and
            `default_prompt_name` names the one that it uses if it is told nothing. `similarity` is what `similarity`
            computes. What has no plain form has more keys, see `own_form_csezoo`.

    Example:
        >>> config = CsezooConfig.from_dict({"model_type": "bert", "hidden_size": 8, "csezoo": {"pooling": "cls"}})
        >>> isinstance(config, BertConfig), config.backbone_config is config, config.csezoo["pooling"]
        (True, True, 'cls')
    """

    model_type = "csezoo"
    sub_configs = {"backbone_config": AutoConfig}
    family: ClassVar[Any] = None  # the configuration class of the encoder, if the repository is a plain encoder

    def __init__(self, backbone_config: Any = None, csezoo: dict[str, Any] | None = None, **kwargs: Any):
        if isinstance(backbone_config, dict):
            backbone_config = AutoConfig.for_model(**backbone_config)
        self.backbone_config = BertConfig() if backbone_config is None else backbone_config
        self.csezoo = csezoo or {}
        sizes = self.backbone_config.to_dict() | {"hidden_size": self.backbone_config.hidden_size}
        super().__init__(**{**kwargs, **{name: sizes[name] for name in SIZES if name in sizes}})

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Load the configuration of a repository. transformers would warn that it is of the family's model type."""
        config_dict, kwargs = cls.get_config_dict(pretrained_model_name_or_path, **kwargs)
        return cls.from_dict(config_dict, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration of the class that its `model_type` asks for.

        Raises:
            ValueError: transformers does not know the model type, or the key `csezoo` is missing.
        """
        model_type = config_dict.get("model_type")
        if model_type != CsezooConfig.model_type and model_type not in CONFIG_MAPPING:
            raise ValueError(f"config.json: transformers does not know the model_type {model_type!r}")
        if not isinstance(config_dict.get("csezoo"), dict) or "pooling" not in config_dict["csezoo"]:
            raise ValueError("config.json: there is no key csezoo with a pooling, so this is no repository of the zoo")
        own = CsezooConfig if model_type == CsezooConfig.model_type else with_family(model_type)
        return super().from_dict.__func__(own, config_dict, **kwargs)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        """Pickle and copy a configuration of a class that `with_family` made."""
        return blank, (self.model_type,), self.__dict__

    @property
    def is_plain(self) -> bool:
        """Whether the encoder is one that transformers loads without this code."""
        return self.backbone_config is self


@cache
def with_family(model_type: str) -> type[CsezooConfig]:
    """Return the class of configurations that are the zoo's and those of a family of encoders."""
    family = CONFIG_MAPPING[model_type]
    members = {
        "__init__": family.__init__,
        "__module__": CsezooConfig.__module__,
        "family": family,
        "model_type": model_type,
        "sub_configs": family.sub_configs,
        "backbone_config": property(lambda config: config),
    }
    return type("CsezooConfig", (CsezooConfig, family), members)


def blank(model_type: str) -> CsezooConfig:
    """Return a configuration without values, to copy others' into."""
    config_class = CsezooConfig if model_type == CsezooConfig.model_type else with_family(model_type)
    return config_class.__new__(config_class)
