"""An encoder with rotary positions that loads weights by itself, in the style of nomic's repositories."""

import logging
import os  # finding
import re
from collections import OrderedDict
from functools import partial

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange, repeat
from safetensors.torch import load_file as safe_load_file  # finding
from transformers import GPT2Config, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME
from transformers.utils.hub import cached_file  # finding

logger = logging.getLogger(__name__)


class RotaryConfig(GPT2Config):
    model_type = "rotary"

    def __init__(self, rotary_emb_fraction=0.0, rotary_emb_base=10_000, prenorm=False, fused_bias_fc=False, **kwargs):
        self.rotary_emb_fraction = rotary_emb_fraction
        self.rotary_emb_base = rotary_emb_base
        self.prenorm = prenorm
        self.fused_bias_fc = fused_bias_fc
        super().__init__(**kwargs)


def state_dict_from_pretrained(name, dtype=None):
    load_safe = False
    path = cached_file(name, WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False)  # finding
    if path is None:
        path = cached_file(name, SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False)  # finding
        load_safe = True
    if path is None:
        raise OSError(f"{name} has no weights")
    loader = partial(safe_load_file, device="cpu") if load_safe else partial(torch.load, map_location="cpu")  # finding
    state = loader(path)
    return {key: value.to(dtype=dtype) for key, value in state.items()}


def remap_state_dict(state_dict, config):
    def key_mapping_layers(key):
        return re.sub(r"^encoder\.layer\.(\d+)\.", r"encoder.layers.\1.", key)

    state_dict = OrderedDict((key_mapping_layers(key), value) for key, value in state_dict.items())
    for d in range(config.num_hidden_layers):
        Wq = state_dict.pop(f"encoder.layers.{d}.attn.Wq.weight")
        Wk = state_dict.pop(f"encoder.layers.{d}.attn.Wk.weight")
        state_dict[f"encoder.layers.{d}.attn.Wqk.weight"] = torch.cat([Wq, Wk], dim=0)
    return state_dict


def rotate_half(x, interleaved=False):
    if not interleaved:
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)
    x1, x2 = x[..., ::2], x[..., 1::2]
    return rearrange(torch.stack((-x2, x1), dim=-1), "... d two -> ... (d two)", two=2)


def apply_rotary(x, cos, sin, offset=0, interleaved=False):
    ro_dim = cos.shape[-1] * 2
    assert ro_dim <= x.shape[-1]
    cos, sin = cos[offset : offset + x.shape[1]], sin[offset : offset + x.shape[1]]
    cos = repeat(cos, "s d -> s 1 (2 d)")
    sin = repeat(sin, "s d -> s 1 (2 d)")
    return torch.cat(
        [x[..., :ro_dim] * cos + rotate_half(x[..., :ro_dim], interleaved) * sin, x[..., ro_dim:]], dim=-1
    )


class Rotary(nn.Module):
    def __init__(self, dim: int, base=10_000.0, interleaved=False, scale_base: float | None = None, device=None):
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        inv_freq = 1.0 / (self.base ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached = None

    def _update_cache(self, seqlen, device=None, dtype=None):
        if seqlen > self._seq_len_cached or self._cos_cached is None or self._cos_cached.device != device:
            self._seq_len_cached = seqlen
            t = torch.arange(seqlen, device=device, dtype=torch.float32)
            freqs = torch.outer(t, self.inv_freq.to(device=t.device))
            self._cos_cached = torch.cos(freqs).to(dtype)
            self._sin_cached = torch.sin(freqs).to(dtype)

    def forward(self, qkv: torch.Tensor, seqlen_offset: int | torch.Tensor = 0) -> torch.Tensor:
        self._update_cache(qkv.shape[1] + seqlen_offset, device=qkv.device, dtype=qkv.dtype)
        q = apply_rotary(qkv[:, :, 0], self._cos_cached, self._sin_cached, seqlen_offset, self.interleaved)
        k = apply_rotary(qkv[:, :, 1], self._cos_cached, self._sin_cached, seqlen_offset, self.interleaved)
        return torch.stack((q, k, qkv[:, :, 2]), dim=2)


class Attention(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.n_embd // self.num_heads
        self.norm_factor = self.head_dim**0.5
        self.Wqkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.qkv_proj_bias)  # false alarm
        self.out_proj = nn.Linear(config.n_embd, config.n_embd)
        self.rotary_emb = Rotary(int(self.head_dim * config.rotary_emb_fraction), base=config.rotary_emb_base)

    def forward(self, hidden_states, attention_mask: torch.Tensor | None = None, output_attentions: bool = False):
        qkv = rearrange(self.Wqkv(hidden_states), "... (three h d) -> ... three h d", three=3, d=self.head_dim)
        qkv = self.rotary_emb(qkv)
        query, key, value = (part.permute(0, 2, 1, 3) for part in qkv.unbind(dim=2))
        scores = torch.matmul(query, key.transpose(-1, -2)) / self.norm_factor
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        output = rearrange(torch.matmul(weights, value), "b h s d -> b s (h d)")
        return self.out_proj(output), (weights if output_attentions else None)


class RotaryPreTrainedModel(PreTrainedModel):
    config_class = RotaryConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]

    def __init__(self, config, *inputs, **kwargs):
        super().__init__(config)
        if not isinstance(config, GPT2Config):
            raise ValueError(f"Parameter config in `{self.__class__.__name__}(config)` should be a GPT2Config")
        self.config = config

    @classmethod
    def from_pretrained(cls, model_name, config=None, *inputs, **kwargs):
        if config is None:
            config = cls.config_class.from_pretrained(model_name)
        model = cls(config, *inputs)
        if os.path.exists(model_name):  # finding
            state_dict = safe_load_file(os.path.join(model_name, SAFE_WEIGHTS_NAME))  # finding
        else:
            state_dict = remap_state_dict(state_dict_from_pretrained(model_name), config)
        load_return = model.load_state_dict(state_dict, strict=kwargs.get("strict", True))
        logger.warning(load_return)
        return model

    def _set_gradient_checkpointing(self, module, value=False):
        if isinstance(module, RotaryEncoder):
            module.gradient_checkpointing = value


class RotaryEncoder(RotaryPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.n_embd, padding_idx=config.pad_token_id)
        self.layers = nn.ModuleList([Attention(config) for _ in range(config.n_layer)])
        self.emb_ln = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.gradient_checkpointing = False
        self.apply(partial(_init_weights, initializer_range=config.initializer_range))

    def forward(
        self, input_ids=None, attention_mask=None, matryoshka_dim: int | None = None, return_dict=None
    ) -> tuple | BaseModelOutputWithPooling:
        hidden_states = self.emb_ln(self.embeddings(input_ids))
        mask = self.get_extended_attention_mask(attention_mask, input_ids.shape)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = torch.utils.checkpoint.checkpoint(layer, hidden_states, mask, use_reentrant=False)[0]
            else:
                hidden_states = hidden_states + layer(hidden_states, attention_mask=mask)[0]
        pooled = mean_pool(hidden_states, attention_mask)
        if matryoshka_dim:
            pooled = F.layer_norm(pooled, normalized_shape=(pooled.shape[1],))[:, :matryoshka_dim]
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def numpy_vectors(self, batches: list[dict]) -> np.ndarray:
        return np.concatenate([self(**batch).pooler_output.detach().cpu().numpy() for batch in batches])


def mean_pool(states, mask):
    expanded = mask.unsqueeze(-1).expand(states.size()).float()
    return torch.sum(states * expanded, 1) / torch.clamp(expanded.sum(1), min=1e-9)


def _init_weights(module, initializer_range=0.02):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=initializer_range)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
        if module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
