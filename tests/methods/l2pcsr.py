"""L2P-CSR: what the tests of methods know of it, and tiny models of it."""

import torch

from csezoo.modeling import L2PCSRForContrastiveLearning
from tests.conftest import NO_DROPOUT, tiny_config
from tests.methods.tested import PASS, Tested

RELEASED = {
    "token_update": "sign",
    "token_step_size": 0.1,
    "feature_step_size": 0.1,
    "feature_mask_scope": "shared",
    "attend_padding": True,
}
TESTED = Tested(
    others={"released": RELEASED, "noise": {"weakening": "noise"}},
    neutral={"threshold": 0.0},
    also_neutral=(
        {"threshold": 0.0, "token_update": "sign", "feature_mask_scope": "shared"},
        {"weakening": "noise", "noise_size": 0.0},
    ),
    # Whatever is drawn first, nothing is weakened at first, and every step goes all the way to 0 or 1.
    exact={"threshold": 1e-9, "token_update": "sign", "token_step_size": 1.0, "feature_step_size": 1e6},
    passes=(*[("BertModel", "masks", 16)] * 4, PASS),
    combinations=("l2pcsr+diffcse",),
)


def l2pcsr(kind="bert", backbone=NO_DROPOUT, training_class=L2PCSRForContrastiveLearning, **changes):
    """A model in training mode, without dropout unless asked for."""
    torch.manual_seed(0)
    config = training_class.config_class(backbone_config=tiny_config(kind, **backbone), **changes)
    return training_class(config).double().train()
