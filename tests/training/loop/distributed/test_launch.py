"""The processes of a run are set up for its recipe, or the recipe is refused."""

from datetime import timedelta

import pytest
import torch
from accelerate.state import AcceleratorState

from csezoo.modeling.contrastive.distributed import host_group
from csezoo.training.errors import UserError
from csezoo.training.loop.distributed.launch import make_accelerator
from csezoo.training.recipes import make_recipe
from tests.interpreters import free_port


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


@pytest.mark.filterwarnings("ignore:OMP_NUM_THREADS")
@pytest.mark.parametrize("mixed_precision", ["no", "auto"])
def test_processes_wait_for_what_the_main_one_does_alone(tmp_path, monkeypatch, mixed_precision):
    """An evaluation or a flow can take hours. torch ends a process that has waited for 10 or 30 minutes."""
    launch = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**launch, "MASTER_PORT": str(free_port()), "ACCELERATE_USE_CPU": "true"}.items():
        monkeypatch.setenv(name, value)
    make_accelerator(make_recipe({"report_to": "none", "mixed_precision": mixed_precision}), tmp_path)
    try:
        gloo = host_group()._get_backend(torch.device("cpu"))
        assert gloo.options._timeout >= timedelta(hours=24)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*no supported trackers")
def test_a_tracker_that_is_not_installed_is_refused(tmp_path):
    with pytest.raises(UserError, match="report_to: aim is not installed; pip install aim"):
        make_accelerator(make_recipe({"report_to": "aim"}), tmp_path)


def test_fp16_on_a_cpu_is_refused(tmp_path, monkeypatch):
    """accelerate records it and computes in float32."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(UserError, match="mixed_precision: fp16 needs a GPU, and this run is on the CPU; use bf16"):
        make_accelerator(make_recipe({"report_to": "none", "mixed_precision": "fp16"}), tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(UserError, match="mixed_precision: fp16 needs a GPU"):
        make_accelerator(make_recipe({"report_to": "none"}), tmp_path)


def test_regional_compilation_is_refused(tmp_path, monkeypatch):
    """accelerate rebuilds the model without its attributes that are None."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "true")
    with pytest.raises(UserError, match="--dynamo_use_regional_compilation: .* leave this option out"):
        make_accelerator(make_recipe({"report_to": "none"}), tmp_path)


def test_gradient_accumulation_of_the_launcher_must_be_that_of_the_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    with pytest.raises(UserError, match="steps 4: the recipe decides; give this option after the recipe instead"):
        make_accelerator(make_recipe({"report_to": "none"}), tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)
    same = make_recipe({"report_to": "none", "gradient_accumulation_steps": 4})
    assert make_accelerator(same, tmp_path).gradient_accumulation_steps == 4
