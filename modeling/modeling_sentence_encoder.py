"""The serving model of every method: a backbone, a pooling, and the projection if it is kept at test."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging

from .backbones import is_causal, norm_eps
from .configuration_sentence_encoder import SentenceEncoderConfig
from .encoding import encode_texts, load_tokenizer
from .fingerprint import load_fingerprint, verify_fingerprint
from .flow import Flow
from .pooling import (
    ALL_LAYERS,
    BackboneOutput,
    MaskedLMTransform,
    build_projection,
    pool,
    pool_mask_token,
    require_mask_token,
    require_right_padding,
)
from .prompts import template_bias
from .saved_files import SavedCompletely
from .view_adapters import UpProjection, ViewAdapters
from .whitening import Whitening

logger = logging.get_logger(__name__)
# Options of `from_pretrained` that locate a checkpoint, and with it its tokenizer.
WHERE_FROM = ("revision", "subfolder", "cache_dir", "token", "local_files_only")
Loaded = TypeVar("Loaded", bound="SentenceEncoderPreTrainedModel")


def without_pooler(backbone: nn.Module) -> dict[str, torch.Tensor]:
    """Return a pre-trained encoder's tensors without its pooler, which no encoder of the zoo has."""
    return {name: tensor for name, tensor in backbone.state_dict().items() if not name.startswith("pooler.")}


class SentenceEncoderPreTrainedModel(SavedCompletely):
    """Strict loading for all models of the zoo: the error names every tensor that does not fit the model."""

    config_class: type[SentenceEncoderConfig] = SentenceEncoderConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    @classmethod
    def from_pretrained(
        cls: type[Loaded],
        pretrained_model_name_or_path: Any,  # a string or a path: a checkpoint's code does not import `os`
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Loaded:
        """Load a checkpoint of the zoo. All options of `PreTrainedModel.from_pretrained` work.

        Raises:
            ValueError: a tensor is missing, unexpected or of another shape. The message names it.
            OSError: there are no safetensors weights. Pickles are never read.
        """
        # Accept shapes that do not match here, to name them below.
        kwargs |= {"ignore_mismatched_sizes": True, "output_loading_info": True, "use_safetensors": True}
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model, info = loaded  # annotated as returning only the model
        model.loaded_from = {"pretrained_model_name_or_path": pretrained_model_name_or_path}
        model.loaded_from |= {name: kwargs[name] for name in WHERE_FROM if name in kwargs}
        missing, unexpected = model._without_training_heads(set(info["missing_keys"]), set(info["unexpected_keys"]))
        problems = [f"missing {name}" for name in sorted(missing)]
        problems += [f"unexpected {name}" for name in sorted(unexpected)]
        problems += [f"mis-shaped {name}" for name, *_ in info["mismatched_keys"]]
        if problems:
            raise ValueError(f"{pretrained_model_name_or_path} does not fit {cls.__name__}: {', '.join(problems)}")
        return loaded if output_loading_info else model

    def _without_training_heads(self, missing: set[str], unexpected: set[str]) -> tuple[set[str], set[str]]:
        """Drop the tensors in which serving and training checkpoints of a method differ."""
        return missing, unexpected


class SentenceEncoderModel(SentenceEncoderPreTrainedModel):
    """The model that `AutoModel` loads. It maps each sentence to a vector.

    It has only the backbone and what inference needs.
    """

    has_fingerprint = True

    # Heads that only a training checkpoint has. Serving ignores them.
    training_heads: tuple[str, ...] = ("projection", "lm_head", "nli_classifier", "average")

    def __init__(self, config: SentenceEncoderConfig):
        super().__init__(config)
        self.backbone = AutoModel.from_config(config.backbone_config)
        self.backbone.pooler = None  # its pooler is for another pre-training task
        self.causal = is_causal(self.backbone)
        if config.pooling == "cls" and self.causal:
            raise ValueError(
                f"pooling: cls reads the first token, which sees no other one in {config.backbone_config.model_type}; "
                "set pooling: last or mean"
            )
        if config.lora_rank:
            self.lora = ViewAdapters(self.backbone, "lora", config.lora_rank, 1, dropout=config.lora_dropout)
        self.transform = (
            MaskedLMTransform(config.hidden_size, norm_eps(self.backbone))
            if config.projection == "mlm_transform"
            else nn.Identity()
        )
        self.projection = build_projection(config, at_test=True)
        self.flow = Flow(config.hidden_size, config.flow_width) if config.flow_width else nn.Identity()
        self.whitening = (
            Whitening(config.hidden_size, config.whitening_size) if config.whitening_size else nn.Identity()
        )
        self.post_init()

    def _without_training_heads(self, missing: set[str], unexpected: set[str]) -> tuple[set[str], set[str]]:
        heads = {
            head for head in self.training_heads if head not in {name.split(".")[0] for name in self.state_dict()}
        }
        return missing, {name for name in unexpected if name.split(".")[0] not in heads}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, UpProjection):
            nn.init.zeros_(module.weight)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPooling | tuple:
        """Encode a batch.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids: `(B, T)`, from the tokenizer saved with the model,
                padded on the right. A causal model may also be padded on the left.
            inputs_embeds: `(B, T, H)`, instead of `input_ids`; not with `prompt` pooling.
            output_hidden_states, output_attentions, return_dict: as in every transformers encoder.

        Returns:
            `pooler_output` `(B, H)`, the sentence embeddings (with fewer dimensions if there is a whitening);
            `last_hidden_state` `(B, T, H)`; `hidden_states` and `attentions` if requested.

        Raises:
            ValueError: a row of an encoder is padded on the left, or a row lacks the mask token that `prompt` pooling
                needs.
        """
        config = self.config
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        return_dict = config.return_dict if return_dict is None else return_dict
        outputs, pooled = self.encode_tokens(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        if self.config.denoise == "always":
            # `encode_tokens` refuses `inputs_embeds`.
            pooled = pooled - self.prompt_bias(input_ids, attention_mask, template=0)  # type: ignore[arg-type]
        result = BaseModelOutputWithPooling(
            last_hidden_state=outputs.last_hidden_state,
            pooler_output=self.whitening(self.flow(self.projection(pooled))),
            hidden_states=outputs.hidden_states if output_hidden_states else None,
            attentions=outputs.attentions,
        )
        return result if return_dict else result.to_tuple()

    @contextmanager
    def read_with(self, encoder: nn.Module) -> Iterator[None]:
        """Use another encoder of the same architecture inside the context.

        Pooling, templates and prefixes stay the same. Hooks on the layers of this model's encoder do not apply to the
        other one. The backward pass encodes mini-batches again with this model's encoder, so a method that needs the
        gradient of the other encoder must set `needs_whole_batch`.
        """
        backbone, self.backbone = self.backbone, encoder
        try:
            yield
        finally:
            self.backbone = backbone

    def add_to_plain(self, backbone: PreTrainedModel) -> None:
        """Add the weight changes of adapters to a plain copy of the backbone, so that it returns the same vectors."""
        if self.config.lora_rank:
            self.lora.merge_into(backbone)

    def run_backbone(self, **inputs: Any) -> BackboneOutput:
        """Run the backbone. A method that passes it more than tokens overrides this."""
        return self.backbone(**inputs)

    def encode_tokens(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        **inputs: Any,
    ) -> tuple[BackboneOutput, torch.Tensor]:
        """Return the backbone's outputs and the pooled vectors `(B, H)`, before any bias or projection.

        Only `mlm_transform` is a projection that was applied to them, as it was to the bias of `prompt_bias`.

        Args:
            input_ids, attention_mask: `(B, T)`.
            output_hidden_states: whether to return those of all layers.
            inputs: further arguments of `run_backbone`.
        """
        rows = input_ids if input_ids is not None else inputs["inputs_embeds"]
        if attention_mask is None:
            attention_mask = torch.ones(rows.shape[:2], dtype=torch.long, device=rows.device)
        checked = not self.training and not torch.compiler.is_compiling()  # a traced graph cannot raise an error
        if self.causal:  # either side may be padded, if positions count from the first real token
            if inputs.get("position_ids") is None:
                positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
                inputs["position_ids"] = positions + self.config.prefix_positions
        elif checked:
            require_right_padding(attention_mask)
        pooling = self.config.pooling
        outputs = self.run_backbone(
            input_ids=input_ids,
            attention_mask=attention_mask,
            output_hidden_states=output_hidden_states or pooling in ALL_LAYERS,
            **{name: value for name, value in inputs.items() if value is not None},
        )
        if pooling != "prompt":
            states = outputs.hidden_states or (outputs.last_hidden_state,)
            return outputs, self.transform(pool(states, attention_mask, pooling))
        if input_ids is None:
            raise ValueError("inputs_embeds: prompt pooling needs the mask token; pass input_ids")
        if checked:
            require_mask_token(input_ids, self.config.mask_token_id)
        vectors = pool_mask_token(outputs.last_hidden_state, input_ids, self.config.mask_token_id)
        return outputs, self.transform(vectors)

    def prompt_bias(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, template: int, **inputs: Any
    ) -> torch.Tensor:
        """Return the bias `(B, H)` of a template for rows that contain it, see `prompts.template_bias`.

        Args:
            input_ids, attention_mask: `(B, T)`.
            template: index of the template in the configuration.
            inputs: further arguments of `run_backbone`.
        """
        token_ids = self.config.prompt_token_ids[template]
        beside_sentence = sum(map(len, token_ids)) - self.config.bias_length_offset
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        bias = template_bias(
            partial(self.run_backbone, **inputs),
            token_ids,
            attention_mask.sum(1) - beside_sentence,
            longest=input_ids.shape[1] - beside_sentence,
            mask_token_id=self.config.mask_token_id,
            position_offset=self.config.denoise_position_offset + self.config.prefix_positions,
        )
        return self.transform(bias)

    def encode(
        self,
        texts: str | list[str],
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        convert_to_numpy: bool = True,
        show_progress_bar: bool = False,
    ) -> Any:  # an array or a tensor: a checkpoint's code does not import numpy
        """Embed texts in batches of similar length, without gradients.

        Args:
            texts: one string or a list of strings, of any length. They are truncated at the model's limit.
            tokenizer: the tokenizer saved with the model; loaded from the checkpoint by default.
            batch_size: largest number of texts in a forward pass. If texts are long, a pass has fewer: at most 1,024
                tokens with padding on a CPU, and at most 128 x `batch_size` tokens on other devices.
            normalize_embeddings: scale every vector to length 1.
            convert_to_numpy: return a float32 numpy array; otherwise a tensor of the model's type on its device.
            show_progress_bar: show a progress bar.

        Returns:
            `(len(texts), H)` in the order of the texts, or `(H,)` for a single text.

        Example:
            `model.encode(["A cat sits.", "A dog runs."], normalize_embeddings=True)`
        """
        return encode_texts(
            self,
            texts,
            tokenizer,
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            convert_to_numpy=convert_to_numpy,
            show_progress_bar=show_progress_bar,
        )

    def verify(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[str]:
        """Compare the checkpoint with its fingerprint: the token ids and vectors of a few sentences when it was saved.

        The vectors are computed from the stored token ids. An error therefore names what differs: the tokenizer, or
        the model (its weights, its configuration, the code or the libraries).

        Args:
            tokenizer: loaded from the checkpoint by default.

        Returns:
            One line for each thing that was compared.

        Raises:
            ValueError: something differs. The message names the sentences and the difference. The elements of a
                vector may differ by 1e-4 of their root mean square, in float16 by 0.05 and in bfloat16 by 0.2.
            OSError: the checkpoint has no fingerprint.

        Example:
            `model.verify()`
        """
        fingerprint = load_fingerprint(self)
        return verify_fingerprint(self, tokenizer or load_tokenizer(self), fingerprint)
