"""DeepSpeed on two processes: same training as one process, complete checkpoints, resume and errors."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from accelerate.utils import is_deepspeed_available

from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.methods import SIMCSE_FIRST, exact, run_keys
from tests.training.runs import (
    DIVERGING,
    FEW_MASKS,
    LAUNCH_TWO,
    finish,
    same_but_for_rounding,
    same_run,
    start,
    values,
)

ROOT = Path(__file__).parents[4]
LAUNCH = ("accelerate", "launch", "--config_file", str(ROOT / "examples/launch/deepspeed.yaml"))
LAUNCH += ("--main_process_port", "0")
NEEDS = 'DEEPSPEED NOT TESTED: pip install -c constraints.txt -e ".[test,deepspeed]"'
needs_deepspeed = pytest.mark.skipif(not is_deepspeed_available(), reason=NEEDS)


@pytest.fixture
def zero(monkeypatch):
    """Start a run with the unchanged launch file, on processor cores."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")

    def zero(recipe, *options) -> subprocess.Popen:
        return start(recipe, *LAUNCH, *options, "-m", "tests.sharded_on_cpu")

    return zero


def cut(run, step):
    """Remove what a run wrote from an update on."""
    shutil.rmtree(run / f"checkpoints/step-{step:08d}")
    (run / "results.json").unlink()


@needs_deepspeed
@pytest.mark.parametrize("name", SIMCSE_FIRST)
def test_zero_trains_like_one_process_and_resumes(
    name, base_without_dropout, bases, train_file, pairs, dev_file, triplets, tmp_path, zero
):
    """With a smaller batch in the middle of the run; SimCSE with accumulation and clipping, too."""
    changes = {**run_keys(name, bases["bert"], triplets), **exact(name)}
    changes |= {"batch_size": 25, "adam_epsilon": 1e-3}
    changes |= FEW_MASKS if name == "l2pcsr" else {}
    if name == "simcse":
        changes |= {"gradient_accumulation_steps": 2, "temperature": 0.001}
        changes |= {"max_grad_norm": 0.02}  # of gradients of a norm of 0.05
    changes |= {} if name in ("prdsimcse", "isbert") else pairs  # these read one sentence
    one = values(base_without_dropout, train_file, dev_file, tmp_path / "one", **changes)
    two = {**one, "output_dir": str(tmp_path / "two")}
    run_recipe(make_recipe(one))
    code, _, err = finish(zero(two))
    assert code == 0, err
    assert "2 process(es) on cpu" in err
    same_but_for_rounding(tmp_path / "one", tmp_path / "two", step=4, files=("model", "optimizer"))

    shutil.copytree(tmp_path / "two", tmp_path / "whole")
    cut(tmp_path / "two", step=6)
    code, _, err = finish(zero(two))
    assert code == 0, err
    assert "step-00000004" in err and "resumed from" in err
    same_run(tmp_path / "whole", tmp_path / "two")


@needs_deepspeed
def test_a_run_resumes_under_another_launch(bases, train_file, triplets, dev_file, tmp_path, zero):
    """In both stages of a recipe, with dropout, bf16 and ZeRO 1: each launch finishes a run of the other one."""
    changes = {**triplets, "method": "diffaug", "nli_batch_size": 13, "nli_steps": 2, "prefix_length": 4}
    changes |= {"batch_size": 25, "max_steps": 2, "eval_steps": 1, "mixed_precision": "bf16"}
    one = values(bases["bert"], train_file, dev_file, tmp_path / "one", **changes)
    two = {**one, "output_dir": str(tmp_path / "two")}

    def train(plain, sharded, beginning):
        for process in (start(plain, *LAUNCH_TWO, ACCELERATE_USE_CPU="true"), zero(sharded, "--zero_stage", "1")):
            code, _, err = finish(process)
            assert code == 0, err
            assert "2 process(es) on cpu, precision bf16" in err and beginning in err
        same_but_for_rounding(tmp_path / "one", tmp_path / "two", step=4, files=("model", "optimizer"))
        results = (read_json(tmp_path / run / "results.json") for run in ("one", "two"))
        assert [result["training"]["precision"] for result in results] == ["bf16", "bf16"]

    train(one, two, beginning="step 1  loss")
    cut(tmp_path / "one", step=4)
    cut(tmp_path / "two", step=4)
    train(two, one, beginning="resumed from ")


@needs_deepspeed
def test_a_loss_that_is_not_finite_ends_the_run(tiny, tmp_path, zero):
    code, _, err = finish(zero(tiny(**DIVERGING)))
    assert code != 0
    step = int(re.search(r"error: the loss is nan at step (\d+) \(sentences ", err)[1])
    kept = {path.name for path in (tmp_path / f"run/non_finite/step-{step:08d}").iterdir()}
    assert kept == {"batch-0.safetensors", "batch-1.safetensors", "report.json"}


@pytest.mark.parametrize(
    ("launch", "line"),
    [
        ({"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "^zero_stage: 3 must be 1 or 2; launch with examples/launch/deeps"),
        ({"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"}, "^offload_optimizer_device: cpu must be none"),
        ({"ACCELERATE_DEEPSPEED_CONFIG_FILE": "zero.json"}, "^deepspeed_config_file: not supported, the recipe sets"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "^mixed_precision: fp16 is not supported with DeepSpeed; use bf16"),
    ],
)
def test_unsupported_settings_of_deepspeed_are_refused(tiny, tmp_path, monkeypatch, launch, line):
    """With the environment variables that `accelerate launch` sets."""
    for name, value in {"ACCELERATE_USE_DEEPSPEED": "true", **launch}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=line):
        run_recipe(make_recipe(tiny()))
    assert not (tmp_path / "run").exists()
