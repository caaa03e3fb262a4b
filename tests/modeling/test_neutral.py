"""At its neutral setting every method has the loss and gradient of SimCSE, alone and combined."""

import pytest
import torch

from csezoo.modeling import METHODS, SimCSEConfig, SimCSEForContrastiveLearning, method
from tests.conftest import NO_DROPOUT, tiny_config
from tests.methods import COMBINATIONS, TESTED
from tests.tiny import batch, gradients, one_view

SIMCSE = {"projection": "tanh", "projection_at_test": False, "temperature": 0.05}
NEUTRAL = {name: tested.neutral for name, tested in TESTED.items() if tested.neutral is not None}
NEUTRAL |= {
    name: {key: value for one in name.split("+") for key, value in NEUTRAL[one].items()}
    for name in COMBINATIONS
    if set(name.split("+")) <= NEUTRAL.keys()
}
SETTINGS = [*NEUTRAL.items(), *((name, keys) for name, tested in TESTED.items() for keys in tested.also_neutral)]


@pytest.mark.parametrize(("name", "keys"), SETTINGS)
def test_neutral_setting_gives_the_loss_the_gradient_and_the_served_vectors_of_simcse(name, keys, kind):
    backbone = tiny_config(kind, **NO_DROPOUT)
    config_class, _, training_class = method(name)
    torch.manual_seed(0)
    neutral = training_class(config_class(backbone_config=backbone, **(SIMCSE | keys))).double().train()
    simcse = SimCSEForContrastiveLearning(SimCSEConfig(backbone_config=backbone)).double().train()
    extra = simcse.load_state_dict({k: v for k, v in neutral.state_dict().items()}, strict=False)
    assert not extra.missing_keys
    for views in (2,) if any("objective" in METHODS[one][2].seams for one in name.split("+")) else (2, 3):
        losses = [model(**batch(views=views)).loss for model in (neutral, simcse)]
        torch.testing.assert_close(*losses, atol=1e-6, rtol=0)
        for model, loss in zip((neutral, simcse), losses, strict=True):
            model.zero_grad()
            loss.backward()
        for key, gradient in gradients(simcse).items():
            torch.testing.assert_close(gradients(neutral)[key], gradient, atol=1e-6, rtol=0, msg=key)
    served = [model.eval().serving_model()(**one_view(batch())).pooler_output for model in (neutral, simcse)]
    torch.testing.assert_close(*served, atol=1e-6, rtol=0)
