"""When the loop calls `begin_stage` and `after_update`."""

import pytest
import torch
from safetensors.torch import load_file

from csezoo.modeling import METHODS, SimCSEConfig, SimCSEForContrastiveLearning, SimCSEModel
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.training.runs import values


class Counting(SimCSEForContrastiveLearning):
    """Counts its updates in a scalar buffer, and remembers its stages."""

    stages: list[str] = []

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def begin_stage(self, name):
        self.stages.append(name)

    def after_update(self):
        assert not torch.is_grad_enabled()
        self.updates += 1


@pytest.fixture
def train(bases, train_file, dev_file, tmp_path, monkeypatch):
    """Train, and return the count in the last checkpoint and the stages that began."""
    monkeypatch.setitem(METHODS, "counting", (SimCSEConfig, SimCSEModel, Counting))
    monkeypatch.setattr(Counting, "stages", [])

    def train(**changes):
        recipe = values(bases["bert"], train_file, dev_file, tmp_path / "run", method="counting", **changes)
        run_recipe(make_recipe(recipe), show=False)
        newest = max((tmp_path / "run" / "checkpoints").iterdir())
        return load_file(newest / "model.safetensors")["updates"].item(), Counting.stages

    return train


@pytest.mark.parametrize("accumulated", [1, 2])
def test_after_update_is_called_once_per_update(train, accumulated):
    assert train(max_steps=3, gradient_accumulation_steps=accumulated) == (3, ["contrastive"])


def test_after_update_is_called_in_every_stage(train, triplets):
    assert train(max_steps=3, nli_steps=2, **triplets) == (5, ["nli", "contrastive"])


def test_after_update_is_not_called_for_an_update_that_fp16_skipped(train, monkeypatch):
    """The first update overflows because its loss is scaled beyond float32. accelerate has fp16 only on GPUs."""
    from accelerate import Accelerator

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-110)
    made = Accelerator.__init__

    def with_a_scaler(self, *arguments, **options):
        made(self, *arguments, **options)
        self.scaler = scaler
        self.native_amp = True

    monkeypatch.setattr(Accelerator, "__init__", with_a_scaler)
    assert train(max_steps=6, eval_steps=6) == (5, ["contrastive"])
