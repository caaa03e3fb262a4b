"""Under FSDP every process has a shard of each tensor: gather complete tensors and scatter them again."""

from __future__ import annotations

import copy
import os
import warnings

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from csezoo.modeling.contrastive.distributed import full_tensor
from csezoo.modeling.contrastive.training_model import ForContrastiveLearning

from ...errors import UserError


def fsdp_plugin() -> FullyShardedDataParallelPlugin | None:
    """Return the FSDP plugin if `accelerate launch` asked for FSDP, else None.

    Autocast sets the precision, as without FSDP. FSDP's mixed precision would also round the loss and the mean of
    the gradients.

    Raises:
        UserError: it asked for FSDP 1, whose flattened parameters cannot be saved as complete tensors.
    """
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return None
    if os.environ.get("FSDP_VERSION") != "2":
        raise UserError(
            "fsdp_version: FSDP 1 is not supported (it flattens parameters); set 2, as examples/launch/fsdp.yaml does"
        )
    return FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecisionPolicy())


def model_to_train(model: ForContrastiveLearning, accelerator: Accelerator) -> ForContrastiveLearning:
    """Return the model for `accelerator.prepare`: the model itself, or a copy under FSDP and DeepSpeed.

    FSDP and DeepSpeed replace the weights of the copy by shards or views. The original stays complete on every
    process, to be evaluated and saved; `gather_weights` updates it.
    """
    if accelerator.distributed_type not in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        return model
    # FSDP warns of in-place changes to outputs of the model. There are none.
    warnings.filterwarnings("ignore", message=".*returned a view tensor", module="torch.distributed.fsdp")
    return copy.deepcopy(model)


@torch.no_grad()
def gather_weights(trained: torch.nn.Module, model: torch.nn.Module) -> None:
    """Copy the trained weights into the complete model. All processes must call this together."""
    if trained is not model:
        for target, tensor in zip(_tensors(model), _tensors(trained), strict=True):
            target.copy_(full_tensor(tensor))


@torch.no_grad()
def scatter_weights(model: torch.nn.Module, trained: torch.nn.Module) -> None:
    """Copy the weights of the complete model into the trained one, after loading a checkpoint."""
    if trained is not model:
        for source, tensor in zip(_tensors(model), _tensors(trained), strict=True):
            tensor.copy_(shard_like(tensor, source))


def gather_moments(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the complete optimizer state, by `INDEX.NAME` of a parameter. All processes must call this together."""
    return {
        f"{index}.{name}": full_tensor(tensor)
        for index, slots in optimizer.state_dict()["state"].items()
        for name, tensor in slots.items()
    }


def scatter_moments(optimizer: torch.optim.Optimizer, moments: dict[int, dict[str, torch.Tensor]]) -> None:
    """Load the complete state of an optimizer, by parameter index and name, after loading a checkpoint."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {name: shard_like(parameters[index], tensor) for name, tensor in slots.items()}
        for index, slots in moments.items()
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def shard_like(model: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Shard a complete tensor like `model`, if both have the same shape. All processes must call this together."""
    if not isinstance(model, DTensor) or tensor.shape != model.shape:
        return tensor
    return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements)


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
