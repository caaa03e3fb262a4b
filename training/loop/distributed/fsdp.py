"""Under FSDP every process holds a shard of each tensor: the whole of it, and shards of a whole."""

from __future__ import annotations

import copy
import os
import warnings

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from csezoo.modeling.modeling_contrastive import ForContrastiveLearning

from ...errors import UserError


def fsdp_plugin() -> FullyShardedDataParallelPlugin | None:
    """FSDP as `accelerate launch` was told to use it, None without.

    Precision is autocast's, as it is without FSDP, whose own would round the loss and the gradients' mean too.

    Raises:
        UserError: it was told of the first version of FSDP, whose checkpoints could not be whole.
    """
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return None
    if os.environ.get("FSDP_VERSION") != "2":
        raise UserError("fsdp_version: 1 keeps no tensor as it is: use 2, as examples/launch/fsdp.yaml does")
    return FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecisionPolicy())


def model_to_train(model: ForContrastiveLearning, accelerator: Accelerator) -> ForContrastiveLearning:
    """What `accelerator.prepare` may wrap: the model itself, or a copy where shards or views take its weights' place.

    The model stays whole on every process, to be evaluated and saved; `gather_weights` brings it up to date.
    """
    if accelerator.distributed_type not in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        return model
    # FSDP warns of in-place changes to what the model returns: there are none.
    warnings.filterwarnings("ignore", message=".*returned a view tensor", module="torch.distributed.fsdp")
    return copy.deepcopy(model)


@torch.no_grad()
def gather_weights(trained: torch.nn.Module, model: torch.nn.Module) -> None:
    """Copy the weights that are trained into the whole model; all processes call it together."""
    if trained is not model:
        for own, tensor in zip(_tensors(model), _tensors(trained), strict=True):
            own.copy_(whole(tensor))


@torch.no_grad()
def scatter_weights(model: torch.nn.Module, trained: torch.nn.Module) -> None:
    """The way back, after a checkpoint was loaded into the whole model."""
    if trained is not model:
        for own, tensor in zip(_tensors(model), _tensors(trained), strict=True):
            tensor.copy_(shard_like(tensor, own))


def gather_moments(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The whole state of an optimizer, by parameter index and slot; all processes call it together."""
    return {
        f"{index}.{name}": whole(tensor)
        for index, slots in optimizer.state_dict()["state"].items()
        for name, tensor in slots.items()
    }


def scatter_moments(optimizer: torch.optim.Optimizer, moments: dict[int, dict[str, torch.Tensor]]) -> None:
    """The way back, after a checkpoint was loaded."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {name: shard_like(parameters[index], tensor) for name, tensor in slots.items()}
        for index, slots in moments.items()
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of all its shards; all processes call it together.

    Example:
        >>> whole(torch.ones(2))  # not sharded
        tensor([1., 1.])
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(model: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A whole tensor, sharded as another of its shape is; all processes call it together.

    Example:
        >>> shard_like(torch.zeros(2), torch.ones(2))  # not sharded
        tensor([1., 1.])
    """
    if not isinstance(model, DTensor) or tensor.shape != model.shape:
        return tensor
    return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements)


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
