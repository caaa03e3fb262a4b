"""At its neutral setting every method has the loss and gradient of SimCSE, alone and combined."""

import pytest
import torch

from csezoo.modeling import METHODS, SimCSEConfig, SimCSEForContrastiveLearning, method
from tests.conftest import tiny_config
from tests.methods import COMBINATIONS, TESTED
from tests.tiny import batch

SIMCSE = {"projection": "tanh", "projection_at_test": False, "temperature": 0.05}
NEUTRAL = {name: tested.neutral for name, tested in TESTED.items() if tested.neutral is not None}
NEUTRAL |= {
    name: {key: value for one in name.split("+") for key, value in NEUTRAL[one].items()}
    for name in COMBINATIONS
    if set(name.split("+")) <= NEUTRAL.keys()
}


def test_every_method_is_tested():
    assert METHODS.keys() == TESTED.keys()


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_setting_gives_the_loss_and_the_gradient_of_simcse(name, kind):
    backbone = tiny_config(kind, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config_class, _, training_class = method(name)
    torch.manual_seed(0)
    neutral = training_class(config_class(backbone_config=backbone, **(SIMCSE | NEUTRAL[name]))).double().train()
    simcse = SimCSEForContrastiveLearning(SimCSEConfig(backbone_config=backbone)).double().train()
    extra = simcse.load_state_dict({k: v for k, v in neutral.state_dict().items()}, strict=False)
    assert not extra.missing_keys
    losses = [model(**batch()).loss for model in (neutral, simcse)]
    torch.testing.assert_close(*losses, atol=1e-6, rtol=0)
    for loss in losses:
        loss.backward()
    gradients = {key: parameter.grad for key, parameter in neutral.named_parameters()}
    for key, parameter in simcse.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, atol=1e-6, rtol=0, msg=key)
