"""DiffAug: what the tests of methods know of it, and tiny models of it."""

import numpy as np
import torch
from torch import nn

from csezoo.modeling import DiffAugConfig, DiffAugForContrastiveLearning
from tests.conftest import tiny_config
from tests.formulas import array
from tests.methods.tested import Tested

TESTED = Tested(
    others={
        "same": {"views_mode": "same", "reparametrisation": False, "mlm_weight": 0.1},
        "lora": {"views_module": "lora", "nli_classes": 0},
        "adapter": {"views_module": "adapter", "projection_at_test": True},
    },
    neutral={"prefix_length": 0, "nli_classes": 0},
    also_neutral=({"views_module": "lora", "nli_classes": 0}, {"views_module": "adapter", "nli_classes": 0}),
    recipe={"nli_steps": 3, "max_steps": 3, "nli_weight": 0.1},
    combinations=("diffaug+diffcse",),
    own_code=("", "same", "adapter"),
)
L = 4  # slots of a view's prefix


def diffaug(kind="bert", backbone=None, **changes):
    """A float64 model whose modules are far from their initial values."""
    torch.manual_seed(0)
    config = DiffAugConfig(backbone_config=backbone or tiny_config(kind), **{"prefix_length": L, **changes})
    model = DiffAugForContrastiveLearning(config).double()
    for name, parameter in model.named_parameters():
        if "prefix_encoder" in name or "view_adapters" in name:
            nn.init.normal_(parameter, std=0.4)
    return model.eval()


def numpy_prefixes(model):
    """Keys and values of every layer, `(M, 2l, H)` each, from the table and the MLP."""
    state = {name: array(tensor) for name, tensor in model.prefix_encoder.state_dict().items()}
    inner = np.tanh(state["embedding.weight"] @ state["transform.0.weight"].T + state["transform.0.bias"])
    flat = inner @ state["transform.2.weight"].T + state["transform.2.bias"]  # (2l, 2MH)
    blocks = np.stack(np.split(flat, 2 * model.config.num_hidden_layers, axis=1))  # (2M, 2l, H): key, value, key, …
    return blocks[0::2], blocks[1::2]
