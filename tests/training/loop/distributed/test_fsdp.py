"""FSDP on two processes: same training as one process, complete checkpoints, resume and errors."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import MixedPrecisionPolicy

from csezoo.training.errors import UserError
from csezoo.training.loop.distributed.fsdp import fsdp_plugin
from tests.methods import RUNS, exact, run_keys
from tests.training.runs import FEW_MASKS, same_but_for_rounding, same_run, train, train_shards, values

ROOT = Path(__file__).parents[4]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_shards_train_like_one_process_and_resume(
    name, base_without_dropout, bases, train_file, pairs, dev_file, triplets, tmp_path
):
    """With a smaller batch in the middle of the run, and the last model as the best.

    Weights are compared after the smaller batch, losses to the end: batch norms make rounding grow with each update.
    ESimCSE begins with equal similarities (its first loss is the logarithm of 25). Its gradient is a small difference
    of nearly equal vectors, and rounding is a large part of it.
    """
    changes = {**run_keys(name, bases["bert"], triplets), **exact(name)}
    changes |= {"batch_size": 25, "adam_epsilon": 1e-3}
    changes |= FEW_MASKS if "l2pcsr" in name else {}
    changes |= {} if "prdsimcse" in name or name == "isbert" else pairs  # these read one sentence
    one = values(base_without_dropout, train_file, dev_file, tmp_path / "one", **changes)
    two = {**one, "output_dir": str(tmp_path / "two")}
    del one["dev_file"], two["dev_file"]
    train(one)
    err = train_shards(two, WHOLE=str(tmp_path / "whole"))
    assert "2 process(es) on cpu" in err and "step-00000004" in err and "resumed from" in err
    near = 5e-4 if "esimcse" in name else 2e-5
    same_but_for_rounding(tmp_path / "one", tmp_path / "two", step=4, near=near, files=("model", "optimizer"))
    last = load_file(tmp_path / "two/checkpoints/step-00000006/model.safetensors")
    served = load_file(tmp_path / "two/best/model.safetensors")
    own_form = "backbone.embeddings.LayerNorm.bias" in served
    for name, tensor in served.items():
        if "pooler" not in name:
            assert torch.equal(last[f"model.{name}" if own_form else f"model.backbone.{name}"], tensor), name
    same_run(tmp_path / "whole", tmp_path / "two")


def test_fsdp_1_is_refused(tiny, tmp_path, monkeypatch):
    """With the environment variables that `accelerate launch` sets."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(
        UserError, match=r"^fsdp_version: FSDP 1 is not supported .*; set 2, as examples/launch/fsdp\.yaml"
    ):
        train(tiny())
    assert not (tmp_path / "run").exists()


def test_fsdp_itself_rounds_nothing(monkeypatch):
    """Otherwise bf16 would differ from that of `DistributedDataParallel`."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    plugin = fsdp_plugin()
    plugin.set_mixed_precision("bf16")  # as Accelerator does
    assert plugin.mixed_precision_policy == MixedPrecisionPolicy()
