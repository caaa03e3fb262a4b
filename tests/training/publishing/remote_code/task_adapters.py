"""An encoder with one LoRA per task and another repository's encoder inside, in the style of jina's repositories."""

import json
import math
import os  # finding
import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.utils.parametrize as parametrize
from huggingface_hub import snapshot_download  # finding
from torch import nn
from torch.nn import Parameter
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

try:
    from tqdm.autonotebook import trange

    has_tqdm = True
except ImportError:
    has_tqdm = False

logger = logging.get_logger(__name__)


class TaskConfig(PretrainedConfig):
    model_type = "tasks"

    def __init__(
        self,
        lora_adaptations: list[str] | None = None,
        lora_rank: int = 4,
        lora_alpha: float = 1.0,
        task_instructions: dict | None = None,
        truncate_dim: int | None = None,
        encoder_name: str = "somebody/encoder",  # finding
        **kwargs,
    ):
        self.lora_adaptations = lora_adaptations
        self.lora_rank = lora_rank
        self.lora_alpha = lora_alpha
        self.task_instructions = task_instructions
        self.truncate_dim = truncate_dim
        self.encoder_name = encoder_name
        super().__init__(**kwargs)


def initialized_weights(shape: tuple[int], num_adaptations: int, init: str = "kaiming") -> torch.Tensor:
    weight_data = []
    for _ in range(num_adaptations):
        new_adaption = torch.zeros(shape)
        if init == "kaiming":
            nn.init.kaiming_uniform_(new_adaption, a=math.sqrt(5))
        elif init == "normal":
            nn.init.normal_(new_adaption)
        else:
            raise NotImplementedError
        weight_data.append(new_adaption)
    return torch.stack(weight_data, dim=0)


class LoRAParametrization(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, num_adaptations: int, rank: int = 4, alpha: float = 1):
        super().__init__()
        self.lora_A = Parameter(initialized_weights((rank, fan_in), num_adaptations))
        self.lora_B = Parameter(torch.zeros((num_adaptations, fan_out, rank)))
        self.lora_alpha, self.rank = alpha, rank
        self.scaling = alpha / rank
        self.register_buffer("lora_dropout_mask", torch.ones((1, fan_in), dtype=self.lora_A.dtype), persistent=False)

    def forward(self, X, current_task):
        return X + torch.matmul(self.lora_B[current_task], self.lora_A[current_task]).view(X.shape) * self.scaling

    @classmethod
    def from_linear(cls, layer: nn.Module, num_adaptations: int, rank: int, alpha: float):
        fan_out, fan_in = layer.weight.shape
        return cls(fan_in, fan_out, num_adaptations, rank=rank, alpha=alpha)

    @classmethod
    def add_to_layer(cls, layer: nn.Module, num_adaptations: int, rank: int, alpha: float):
        if isinstance(layer, nn.Linear):
            lora = cls.from_linear(layer, num_adaptations, rank, alpha)
            parametrize.register_parametrization(layer, "weight", lora)

            def new_forward(self, input, task_id=None, residual=False):
                weights = self.parametrizations.weight[0](self.weight, task_id) if task_id is not None else self.weight
                out = F.linear(input, weights, self.bias)
                return (out, input) if residual else out

            layer.forward = new_forward.__get__(layer, layer.__class__)  # false alarm


class TaskModel(PreTrainedModel):
    config_class = TaskConfig

    def __init__(self, config: TaskConfig, roberta=None):
        super().__init__(config)
        self.encoder = roberta or AutoModel.from_pretrained(config.encoder_name, trust_remote_code=True)  # finding
        self.tokenizer = AutoTokenizer.from_pretrained(config.name_or_path, trust_remote_code=True)  # finding
        self._task_instructions = config.task_instructions
        self._adaptation_map = {name: idx for idx, name in enumerate(config.lora_adaptations or [])}
        self._register_lora(len(self._adaptation_map), config.lora_rank, config.lora_alpha)
        self.main_params_trainable = False

    @property
    def main_params_trainable(self):
        return self._main_params_trainable

    @main_params_trainable.setter
    def main_params_trainable(self, val: bool):
        self._main_params_trainable = val
        for name, param in super().named_parameters():
            if "lora" not in name:
                param.requires_grad_(val)

    def _register_lora(self, num_adaptations, rank, alpha):
        add = partial(LoRAParametrization.add_to_layer, num_adaptations=num_adaptations, rank=rank, alpha=alpha)
        self.apply(add)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *args, **kwargs):  # finding
        config = AutoConfig.from_pretrained(pretrained_model_name_or_path, trust_remote_code=True)  # finding
        if os.path.isdir(pretrained_model_name_or_path):  # finding
            directory = pretrained_model_name_or_path
        else:
            directory = snapshot_download(repo_id=pretrained_model_name_or_path, allow_patterns=["*.json"])
        with open(os.path.join(directory, "tasks.json")) as file:  # finding
            config.task_instructions = json.load(file)  # finding
        return super().from_pretrained(pretrained_model_name_or_path, *args, config=config, **kwargs)

    @torch.inference_mode()
    def encode(
        self,
        sentences: str | list[str],
        *args,
        task: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        normalize_embeddings: bool = True,
        **tokenizer_kwargs,
    ) -> list[torch.Tensor] | np.ndarray | torch.Tensor:
        is_training = self.training
        self.eval()
        if show_progress_bar is None:
            show_progress_bar = logger.getEffectiveLevel() in (20, 10)
        if isinstance(sentences, str) or not hasattr(sentences, "__len__"):
            sentences = [sentences]
        if task is not None and task not in self._adaptation_map:
            warnings.warn(f"Unknown task {task}. Supported are {sorted(self._adaptation_map)}.", stacklevel=2)
        task_id = self._adaptation_map.get(task)
        permutation = np.argsort([-len(i) for i in sentences])
        inverse_permutation = np.argsort(permutation)
        sentences = [sentences[idx] for idx in permutation]
        all_embeddings: list[torch.Tensor] = []
        range_iter: Iterator = (trange if has_tqdm and show_progress_bar else range)(0, len(sentences), batch_size)
        for i in range_iter:
            encoded = self.tokenizer(sentences[i : i + batch_size], return_tensors="pt", **tokenizer_kwargs)
            encoded = encoded.to(next(self.parameters()).device)
            adapter_mask = torch.full((len(encoded["input_ids"]),), task_id, dtype=torch.int32)
            token_embs = self.encoder(**encoded, adapter_mask=adapter_mask)[0].float()
            embeddings = self.mean_pooling(token_embs, encoded["attention_mask"])
            if self.config.truncate_dim:
                embeddings = embeddings[:, : self.config.truncate_dim]
            if normalize_embeddings:
                embeddings = F.normalize(embeddings, p=2, dim=1)
            all_embeddings.extend(embeddings.cpu() if convert_to_numpy else embeddings)
        all_embeddings = [all_embeddings[idx] for idx in inverse_permutation]
        self.train(is_training)
        return np.asarray([emb.numpy() for emb in all_embeddings]) if convert_to_numpy else torch.stack(all_embeddings)

    def mean_pooling(self, token_embeddings: torch.Tensor, attention_mask: torch.Tensor):
        mask = attention_mask.unsqueeze(-1).expand(token_embeddings.size()).float()
        return torch.sum(token_embeddings * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
