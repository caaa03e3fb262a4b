"""What all models of the zoo have in common: strict loading, and padding that is left out of encoder passes."""

from typing import Any, TypeVar

import torch
from transformers import PretrainedConfig, PreTrainedModel

from ..serving.modeling_csezoo import WHERE_FROM, CsezooModel
from .configuration import SentenceEncoderConfig
from .keys import declared_keys
from .packing import LengthBuckets, Packing, packing_of
from .published import load_published
from .weight_files import weight_files

Loaded = TypeVar("Loaded", bound="SentenceEncoderPreTrainedModel")


class SentenceEncoderPreTrainedModel(PreTrainedModel):
    """Strict loading for all models of the zoo: the error names every tensor that does not fit the model."""

    config_class: type[SentenceEncoderConfig] = SentenceEncoderConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    # Whether encoders compute the padding of a batch. Otherwise they read its real tokens only, see `packing`.
    computes_padding = False
    padding_tokens: int | torch.Tensor = 0  # tokens of padding computed so far

    def __init__(self, config: SentenceEncoderConfig, *args: Any, **kwargs: Any):
        config.check()  # options of `from_pretrained` are set after the configuration has checked itself
        super().__init__(config, *args, **kwargs)

    @property
    def layout(self) -> str:
        """How batches are read: `packed` without their padding, or `padded`."""
        return "padded" if self.computes_padding else "packed"

    def packing(
        self,
        encoder: PreTrainedModel,
        attention_mask: torch.Tensor,
        padded: bool = False,
        pooled: torch.Tensor | None = None,
    ) -> Packing | LengthBuckets | None:
        """Return how an encoder pass leaves out the padding of rows `(R, T)`, or None if it computes it.

        Count the padding that the pass computes, unless it is compiled or in inference mode (`encode`).

        Args:
            encoder: one of this model's.
            padded: whether the pass needs the padding.
            pooled: see `packing_of`.
        """
        packing = None if padded or self.computes_padding else packing_of(encoder, attention_mask, pooled)
        if not (torch.compiler.is_compiling() or torch.is_inference_mode_enabled()):
            padding = attention_mask.numel() - attention_mask.sum() if packing is None else packing.padding
            self.padding_tokens = self.padding_tokens + padding
        return packing

    def compute_padding(self, on: bool = True) -> None:
        """Compute the padding of batches, or leave it out again."""
        for model in self.modules():
            if isinstance(model, SentenceEncoderPreTrainedModel):
                model.computes_padding = on

    def pop_padding_tokens(self) -> int | torch.Tensor:
        """Return the tokens of padding computed since the last call, on the device."""
        taken: int | torch.Tensor = 0
        for model in self.modules():
            if isinstance(model, SentenceEncoderPreTrainedModel):
                taken = taken + model.padding_tokens
                model.padding_tokens = 0
        return taken

    @classmethod
    def from_pretrained(
        cls: type[Loaded],
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Loaded:
        """Load a published repository, or a training model that `save_pretrained` wrote.

        Of a published repository, a training model has the encoder; its heads are new, and a warning names them.

        Raises:
            ValueError: a tensor is missing, unexpected or of another shape. The message names it.
            OSError: there are no safetensors weights. Pickles are never read.
        """
        where = {name: kwargs[name] for name in WHERE_FROM if name in kwargs}
        content, _ = PretrainedConfig.get_config_dict(pretrained_model_name_or_path, **where)
        if "csezoo" in content:
            if output_loading_info:
                raise ValueError(
                    "output_loading_info: a published repository fits as a whole, or is refused; leave it out"
                )
            return cls._from_published(pretrained_model_name_or_path, where, **kwargs)
        if content.get("model_type") and "backbone_config" not in content and "config" not in kwargs:
            name, kind = pretrained_model_name_or_path, cls.config_class.model_type
            raise ValueError(
                f"{name} is a bare encoder ({content['model_type']}), not a model of the zoo; build a training model "
                f"from it: model, collator = csezoo.for_training({kind!r}, {str(name)!r})"
            )
        weight_files(pretrained_model_name_or_path, **where)
        # Accept shapes that do not match here, to name them below.
        kwargs |= {"ignore_mismatched_sizes": True, "output_loading_info": True, "use_safetensors": True}
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model, info = loaded  # annotated as returning only the model
        missing, unexpected = model._accept_heads(set(info["missing_keys"]), set(info["unexpected_keys"]))
        problems = [f"missing {name}" for name in sorted(missing)]
        problems += [f"unexpected {name}" for name in sorted(unexpected)]
        problems += [f"mis-shaped {name}" for name, *_ in info["mismatched_keys"]]
        if problems:
            raise ValueError(f"{pretrained_model_name_or_path} does not fit {cls.__name__}: {', '.join(problems)}")
        return loaded if output_loading_info else model

    @classmethod
    def _from_published(
        cls: type[Loaded], repository: Any, where: dict[str, Any], config: Any = None, **options: Any
    ) -> Loaded:
        """Load a published repository. Options that are keys of the configuration change it."""
        keys = {name: options.pop(name) for name in declared_keys(cls.config_class) if name in options}
        if config is None:
            config = cls.config_class.from_pretrained(repository, **where)
        for name, value in keys.items():
            setattr(config, name, value)
        form = load_published(repository, **options)
        if form.tokenizer is not None:
            config.mask_token_id = config.mask_token_id or form.tokenizer.mask_token_id
            special = {*form.tokenizer.all_special_ids, config.mask_token_id}  # a template has a mask token of its own
            config.special_token_ids = config.special_token_ids or sorted(special - {None})
        config.backbone_config._attn_implementation = form.backbone.config._attn_implementation
        model = cls(config).to(form.device, form.dtype)  # type: ignore[arg-type]  # a decorator hides `self`
        model.copy_published(form)
        return model.eval()

    def copy_published(self, form: CsezooModel) -> None:
        """Copy the weights of a published repository."""
        raise NotImplementedError

    def _accept_heads(self, missing: set[str], unexpected: set[str]) -> tuple[set[str], set[str]]:
        """Drop the tensors in which serving and training checkpoints of a method differ."""
        return missing, unexpected
