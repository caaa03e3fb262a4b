"""The processes of a run are set up for its recipe, or the recipe is refused."""

import pytest
from accelerate.state import AcceleratorState

from csezoo.training.errors import UserError
from csezoo.training.loop.distributed.launch import make_accelerator
from csezoo.training.recipes import make_recipe


@pytest.fixture(autouse=True)
def no_processes():
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    ("keys", "unused"),
    [
        ({}, False),
        ({"nli_classes": 3}, True),
        ({"contrastive_weight": 0.0}, True),
        ({"contrastive_weight": 2.0}, False),
    ],
)
def test_parameters_without_gradients_are_looked_for_only_if_there_can_be_some(keys, unused, tmp_path):
    accelerator = make_accelerator(make_recipe({"report_to": "none", **keys}), tmp_path)
    assert accelerator.ddp_handler.find_unused_parameters == unused


@pytest.mark.filterwarnings("ignore:.*no supported trackers")
def test_a_tracker_that_is_not_installed_is_refused(tmp_path):
    with pytest.raises(UserError, match="report_to: aim is not installed; pip install aim"):
        make_accelerator(make_recipe({"report_to": "aim"}), tmp_path)
