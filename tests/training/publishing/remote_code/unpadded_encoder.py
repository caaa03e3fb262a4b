"""An encoder that computes without padding and extends its rotary positions, in the style of gte's repositories."""

import math
from dataclasses import dataclass

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss
from transformers.activations import ACT2FN
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling, ModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

try:
    import xformers.ops as xops  # finding
except ImportError:
    xops = None

logger = logging.get_logger(__name__)
LAYER_NORM = {"layer_norm": nn.LayerNorm}


class UnpaddedConfig(PretrainedConfig):
    model_type = "unpadded"

    def __init__(
        self, layer_norm_type="layer_norm", pack_qkv=True, unpad_inputs=False, logn_attention_scale=False, **kw
    ):
        super().__init__(**kw)
        self.layer_norm_type = layer_norm_type
        self.pack_qkv = pack_qkv
        self.unpad_inputs = unpad_inputs
        self.logn_attention_scale = logn_attention_scale


class IndexFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, indices):
        ctx.save_for_backward(indices)
        assert input.ndim >= 2
        ctx.first_axis_dim, other_shape = input.shape[0], input.shape[1:]
        second_dim = other_shape.numel()
        index = indices.unsqueeze(-1).expand(-1, second_dim)
        return torch.gather(input.view(ctx.first_axis_dim, second_dim), 0, index).view(-1, *other_shape)

    @staticmethod
    def backward(ctx, grad_output):
        (indices,) = ctx.saved_tensors
        assert grad_output.ndim >= 2
        grad_input = torch.zeros([ctx.first_axis_dim, grad_output.shape[1]], dtype=grad_output.dtype)
        grad_input.scatter_(0, indices.unsqueeze(1).expand_as(grad_output), grad_output)
        return grad_input.reshape(ctx.first_axis_dim, *grad_output.shape[1:]), None


index_first_axis = IndexFirstAxis.apply


def unpad_input(hidden_states, attention_mask=None, indices=None):
    if indices is None:
        assert attention_mask is not None
        indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    return index_first_axis(hidden_states.view(-1, *hidden_states.shape[2:]), indices)


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, dim, max_position_embeddings=512, base=10000.0, device=None):
        super().__init__()
        self.dim, self.max_position_embeddings, self.base = dim, max_position_embeddings, base
        inv_freq = 1.0 / (self.base ** (torch.arange(0, self.dim, 2).float().to(device) / self.dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self._set_cos_sin_cache(max_position_embeddings, self.inv_freq.device, torch.get_default_dtype())

    def _set_cos_sin_cache(self, seq_len, device, dtype):
        self.max_seq_len_cached = seq_len
        t = torch.arange(self.max_seq_len_cached, device=device, dtype=torch.float32)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos().to(dtype), persistent=False)
        self.register_buffer("sin_cached", emb.sin().to(dtype), persistent=False)

    def forward(self, x, seq_len=None):
        if seq_len > self.max_seq_len_cached:
            self._set_cos_sin_cache(seq_len=seq_len, device=x.device, dtype=x.dtype)
        return self.cos_cached[:seq_len, ...].to(dtype=x.dtype), self.sin_cached[:seq_len, ...].to(dtype=x.dtype)


class NTKScalingRotaryEmbedding(RotaryEmbedding):
    def __init__(self, dim, max_position_embeddings=512, base=10000, device=None, scaling_factor=1.0, mixed_b=None):
        self.scaling_factor = scaling_factor
        self.mixed_b = mixed_b
        super().__init__(dim, max_position_embeddings, base * scaling_factor ** (dim / (dim - 2)), device)


class Attention(nn.Module):
    def __init__(self, config: UnpaddedConfig, pack_qkv=None, use_memory_efficient_attention=None):
        super().__init__()
        if config.hidden_size % config.num_attention_heads != 0 and not hasattr(config, "embedding_size"):
            raise ValueError(f"{config.hidden_size} is not a multiple of {config.num_attention_heads}")
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = int(config.hidden_size / config.num_attention_heads)
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=True)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.memory_efficient_attention = None if xops is None else xops.memory_efficient_attention  # finding

    def forward(self, hidden_states: torch.Tensor, bias: torch.Tensor | None, lengths: list[int] | None = None):
        shape = hidden_states.shape[:-1] + (self.num_attention_heads, self.attention_head_size)
        query, key, value = (
            part.view(shape) for part in self.qkv_proj(hidden_states).split(math.prod(shape[-2:]), -1)
        )
        if self.memory_efficient_attention is not None and lengths is not None:
            context = self.memory_efficient_attention(query, key, value, attn_bias=bias)
        else:
            context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.dropout(self.o_proj(context.flatten(-2)))


class UnpaddedPreTrainedModel(PreTrainedModel):
    config_class = UnpaddedConfig
    base_model_prefix = "new"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.LayerNorm):
            module.bias.data.zero_()
            module.weight.data.fill_(1.0)


class UnpaddedModel(UnpaddedPreTrainedModel):
    def __init__(self, config: UnpaddedConfig, add_pooling_layer=False):
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.attention = Attention(config)
        self.norm = LAYER_NORM[config.layer_norm_type](config.hidden_size, eps=config.layer_norm_eps)
        self.act_fn = ACT2FN[config.hidden_act]
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self):
        return self.word_embeddings

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        length: list[int] | None = None,
    ) -> tuple[torch.Tensor] | BaseModelOutputWithPooling:
        states = self.norm(self.word_embeddings(input_ids))
        if self.config.unpad_inputs:
            if length is None:
                length = attention_mask.sum(-1).tolist()
            states = unpad_input(states, attention_mask).unsqueeze(0)
        states = states + self.act_fn(self.attention(states, None, length))
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=None)


@dataclass
class TokenClassifierOutputWithLogits(ModelOutput):
    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor = None


class UnpaddedForSequenceClassification(UnpaddedPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.new = UnpaddedModel(config, add_pooling_layer=True)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids: torch.Tensor | None = None, labels: torch.Tensor | None = None):
        logits = self.classifier(self.new(input_ids)[0][:, 0])
        loss = None
        if labels is not None:
            if self.config.problem_type is None:
                regression, integer = self.num_labels == 1, labels.dtype in (torch.long, torch.int)
                self.config.problem_type = "regression" if regression else "single_label" if integer else "multi_label"
            if self.config.problem_type == "regression":
                loss = MSELoss()(logits.squeeze(), labels.squeeze())
            elif self.config.problem_type == "single_label":
                loss = CrossEntropyLoss()(logits.view(-1, self.num_labels), labels.view(-1))
            else:
                loss = BCEWithLogitsLoss()(logits, labels)
        if not torch.jit.is_tracing() and torch.isnan(logits).any():
            logger.warning_once("there are nan values in the logits")
        return TokenClassifierOutputWithLogits(loss=loss, logits=logits)


def pooled(output: BaseModelOutput) -> torch.Tensor:
    return output.last_hidden_state[:, 0]
