"""The serving model of every method: a backbone, a pooling, and the projection if it is kept at test."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from ..pooling import build_projection, token_places
from ..serving.encoding_csezoo import EncodesTexts
from ..serving.modeling_csezoo import CsezooModel, is_causal
from ..serving.own_form_csezoo import Flow, wk_pool
from ..serving.pooling_csezoo import LAYERS, BackboneOutput, build_layers, pool_mask_token
from .backbones import norm_eps
from .configuration import SentenceEncoderConfig
from .devices import tensor_on
from .masked_language_modeling import MaskedLMTransform
from .packing import LengthBuckets, Packing, packed
from .pretrained import SentenceEncoderPreTrainedModel
from .published import copy_published, publish_model, transform_layers
from .view_adapters import UpProjection, ViewAdapters
from .whitening import Whitening


def new_encoder(config: PretrainedConfig) -> PreTrainedModel:
    """Return an encoder with new weights, without its pooler, which is for another pre-training task."""
    encoder = AutoModel.from_config(config)
    encoder.pooler = None
    return encoder


class SentenceEncoderModel(EncodesTexts, SentenceEncoderPreTrainedModel):
    """The encoder of a training model. It maps each sentence to a vector, and is saved as a published repository.

    It has only the backbone and what inference needs.
    """

    # Heads that only a training checkpoint has. Serving ignores them.
    training_heads: tuple[str, ...] = ("projection", "lm_head", "nli_classifier", "average")

    def __init__(self, config: SentenceEncoderConfig):
        super().__init__(config)
        self.backbone = new_encoder(config.backbone_config)
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
        self.named_prompts = config.named_prompts or {}
        self.default_prompt_name, self.similarity_fn_name = config.default_prompt_name, config.similarity
        self.base_layers = build_layers(config.base_layers or [], LAYERS)
        self.projection = build_projection(config, at_test=True)
        self.flow = Flow(config.pooled_size, config.flow_width) if config.flow_width else nn.Identity()
        self.whitening = (
            Whitening(config.pooled_size, config.whitening_size) if config.whitening_size else nn.Identity()
        )
        self.post_init()

    def _accept_heads(self, missing: set[str], unexpected: set[str]) -> tuple[set[str], set[str]]:
        heads = set(self.training_heads) - {name.split(".")[0] for name in self.state_dict()}
        return missing, {name for name in unexpected if name.split(".")[0] not in heads}

    @property
    def needs_padding(self) -> bool:
        """Whether every pass of the backbone computes the padding."""
        return False

    @property
    def pools_early(self) -> bool:
        """Whether the last layer may compute the pooled tokens alone."""
        return True

    @property
    def embedding_size(self) -> int:
        return self.config.embedding_size

    @property
    def mask_token_id(self) -> int:
        return self.config.mask_token_id

    @property
    def first_position(self) -> int:  # type: ignore[override]
        return self.config.prefix_positions

    def save_pretrained(  # type: ignore[override]  # further positional options depend on the version
        self, save_directory: Any, is_main_process: bool = True, state_dict: dict | None = None, **kwargs: Any
    ) -> None:
        """Save the model as a published repository, see `CsezooModel.save_pretrained`."""
        if state_dict is not None:
            raise ValueError("state_dict: load these weights into the model first; it is saved in another form")
        publish_model(self).save_pretrained(save_directory, is_main_process, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, UpProjection):
            nn.init.zeros_(module.weight)

    def map_vectors(
        self, pooled: torch.Tensor, input_ids: torch.Tensor | None, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        if self.config.denoise == "always":
            # `pool_outputs` refuses `inputs_embeds`.
            pooled = pooled - self.prompt_bias(input_ids, attention_mask, template=0)  # type: ignore[arg-type]
        vectors = self.whitening(self.flow(self.projection(pooled)))
        return F.normalize(vectors, dim=-1) if self.config.normalize else vectors

    @contextmanager
    def read_with(self, encoder: nn.Module) -> Iterator[None]:
        """Use another encoder of the same architecture inside the context.

        Pooling, templates and prefixes stay the same. Hooks on the layers of this model's encoder do not apply to the
        other one. The backward pass encodes mini-batches again with this model's encoder, so a method that needs the
        gradient of the other encoder must set `reason_for_whole_batch`.
        """
        backbone, self.backbone = self.backbone, encoder
        try:
            yield
        finally:
            self.backbone = backbone

    def own_form(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return what a plain encoder cannot have, as keys and tensors of `CsezooOwnFormModel`."""
        own: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        if self.config.denoise == "always":
            before, after = self.config.prompt_token_ids[0]
            longest = self.own_tokenizer().model_max_length - len(before) - len(after)
            own["denoise"] = {"template_tokens": len(before) + len(after), "longest": longest}
            # In float64, because the rounding of a table is an error of every vector.
            tensors["template_bias"] = copy.deepcopy(self).double().eval().biases_by_length(0, longest)
            for number, (described, state) in enumerate(transform_layers(self)):
                own.setdefault("transform", []).append(described)
                tensors |= {f"transform.{number}.{name}": tensor for name, tensor in state.items()}
        return own, tensors

    def copy_published(self, form: CsezooModel) -> None:
        copy_published(self, form)

    def lora_modules(self) -> list[ViewAdapters]:
        """Return the modules whose changes can be added to the backbone's weights."""
        return [self.lora] if self.config.lora_rank else []

    def run_backbone(
        self, attention_mask: torch.Tensor, packing: Packing | LengthBuckets | None = None, **inputs: Any
    ) -> BackboneOutput:
        """Run the backbone. A method that passes it more than tokens overrides this.

        Args:
            attention_mask: `(R, T)`.
            packing: of `attention_mask`. The outputs are unpacked again, with zeros at padding.
        """
        with packed(self.backbone, attention_mask, packing) as backbone:
            outputs = backbone(**inputs)
        if packing is not None:
            outputs.last_hidden_state = packing.unpack(outputs.last_hidden_state)
            if outputs.hidden_states is not None:
                outputs.hidden_states = tuple(map(packing.unpack, outputs.hidden_states))
        return outputs

    @property
    def pooling(self) -> str:
        """The pooling of the current mode, training or not."""
        return self.config.pooling

    def encode_tokens(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor,
        *,
        output_hidden_states: bool = False,
        pooled_only: bool = False,
        **inputs: Any,
    ) -> tuple[BackboneOutput, torch.Tensor]:
        """Return the backbone's outputs and the pooled vectors `(B, H)`, before any bias or projection.

        The layers of the base model are applied. The one projection that is applied here is `mlm_transform`; in
        `prompt_bias` it is applied to the bias.

        Args:
            input_ids, attention_mask: `(B, T)`, which are not checked: the zoo's collator makes those of training.
            pooled_only: nothing but the pooled vectors is read. If pooling reads one token of each row, the last layer
                may then leave out the others. The last hidden state has zeros there.
            inputs: further arguments of `run_backbone`.
        """
        pooling = self.pooling
        # Attentions and a cache are of padded rows; `wk` divides by the norms of token vectors, at padding too.
        padded = bool(inputs.get("output_attentions")) or "cache" in inputs or pooling == "wk" or self.needs_padding
        places = None
        if pooled_only and self.pools_early:
            places = token_places(pooling, input_ids, attention_mask, self.config.mask_token_id)
        inputs["packing"] = self.packing(self.backbone, attention_mask, padded, places)
        outputs, pooled = super().encode_tokens(
            input_ids, attention_mask, output_hidden_states=output_hidden_states, **inputs
        )
        for layer in self.base_layers:
            pooled = layer(pooled)
        return outputs, self.transform(pooled)

    def pool_outputs(
        self, outputs: BackboneOutput, input_ids: torch.Tensor | None, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        if self.pooling == "wk":
            return wk_pool(outputs.hidden_states, attention_mask)  # type: ignore[arg-type]  # they were requested
        return super().pool_outputs(outputs, input_ids, attention_mask)

    def prompt_bias(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, template: int, **inputs: Any
    ) -> torch.Tensor:
        """Return the bias `(B, H)` of a template (by its number) for rows `(B, T)` that contain it."""
        token_ids = self.config.prompt_token_ids[template]
        beside_sentence = sum(map(len, token_ids)) - self.config.bias_length_offset
        longest = input_ids.shape[1] - beside_sentence
        return self.biases_by_length(template, longest, **inputs)[attention_mask.sum(1) - beside_sentence]

    def biases_by_length(self, template: int, longest: int, **inputs: Any) -> torch.Tensor:
        """Return the vectors `(longest + 1, H)` of a template (by its number) for sentences of 0 to `longest` tokens.

        For length k the template is encoded alone, without padding and attending to all tokens. The positions of the
        tokens after the sentence slot are increased by k, as if there were a sentence of k tokens. The backbone stays
        in training or evaluation mode (in training, each length has different dropout), and gradients flow through.

        References:
            Jiang et al. 2022, "PromptBERT: Improving BERT Sentence Embeddings with Prompts", on template denoising.
        """
        before, after = self.config.prompt_token_ids[template]
        lengths = torch.arange(longest + 1, device=self.device)[:, None]  # (K, 1)
        input_ids = tensor_on(self.device, before + after).expand(longest + 1, -1)  # (K, L)
        slot = torch.arange(len(before) + len(after), device=self.device)  # (L,)
        first = self.config.denoise_position_offset + self.config.prefix_positions
        position_ids = first + slot + lengths * (slot >= len(before))  # (K, L)
        outputs = self.run_backbone(
            torch.ones_like(input_ids), input_ids=input_ids, position_ids=position_ids, **inputs
        )
        return self.transform(pool_mask_token(outputs.last_hidden_state, input_ids, self.config.mask_token_id))
