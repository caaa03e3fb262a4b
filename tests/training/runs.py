"""Runs of a few seconds on a tiny base model: their recipe, their processes, and what they wrote."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.interpreters import run_two

ROOT = Path(__file__).parents[2]
LAUNCH_TWO: tuple[str, ...] = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
LAUNCH_TWO += ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
LAUNCH_TWO += ("-m", "csezoo.training.train")


def values(base, train_file, dev_file, output, /, **changes):
    """A recipe of a few seconds."""
    return {
        "name": "tiny",
        "base_model": str(base),
        "train_file": str(train_file),
        "dev_file": str(dev_file),
        "eval_data": "none",
        "output_dir": str(output),
        "batch_size": 16,
        "max_steps": 6,
        "eval_steps": 2,
        "log_steps": 1,
        "learning_rate": 1e-3,
        "report_to": "none",
        **changes,
    }


def train(recipe, **changes):
    """Train in this process with the keys of a recipe, changed, and return the results."""
    return run_recipe(make_recipe({**recipe, **changes}))


def command_line(recipe):
    keys = {key: value for key, value in recipe.items() if key != "name"}
    arguments = ["simcse-bert-base-uncased"]
    for key, value in keys.items():
        arguments += [f"--{key}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return arguments


def start(recipe, *launcher, **environment):
    """Start training in separate processes with a launcher."""
    return subprocess.Popen(
        [*launcher, *command_line(recipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


FSDP = ROOT / "examples" / "launch" / "fsdp.yaml"


def launch_shards(recipe) -> subprocess.Popen:
    """The unchanged launch file, on processor cores; see `tests/sharded_on_cpu.py`."""
    launcher = ("accelerate", "launch", "--config_file", str(FSDP), "--main_process_port", "0")
    return start(recipe, *launcher, "-m", "tests.sharded_on_cpu", PYTHONPATH=str(ROOT))


def train_shards(recipe, **environment) -> str:
    """The log of two processes that shard as the launch file says, without its launcher, which takes longer."""
    config = yaml.safe_load(FSDP.read_text(encoding="utf-8"))["fsdp_config"]
    settings = {
        key.upper(): str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()
    }
    settings |= {"ACCELERATE_USE_FSDP": "true", **environment}
    return run_two("-m", "tests.sharded_on_cpu", *command_line(recipe), **settings)[1]


def finish(process):
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def same_run(one, other):
    """Bit-identical weights, metrics and best model, and the same files."""
    one_files, other_files = ({path.name for path in run.iterdir()} - {".lock"} for run in (one, other))
    assert one_files == other_files
    newest = max(path.name for path in (one / "checkpoints").iterdir())
    for name in ("best", f"checkpoints/{newest}"):
        a, b = (load_file(directory / name / "model.safetensors") for directory in (one, other))
        assert a.keys() == b.keys()
        for tensor in a:
            assert torch.equal(a[tensor], b[tensor]), tensor
    assert lines(one) == lines(other)


# L2P-CSR for runs in single precision. A mask jumps where rounding decides the sign of its gradient: some do, of
# thousands. The masks that all rows share are a hundred, and their gradients are 100 times the rounding and more. The
# masks of tokens are compared in double precision, in `tests/modeling/test_distributed.py`.
FEW_MASKS = {"token_mask": False, "feature_mask_scope": "shared", "inner_steps": 2}


def same_but_for_rounding(one, other, step, *, near=2e-5, rtol=1e-4, logged=1e-3, files=("model",)):
    """Close tensors at an update, and close metrics: sums of two processes are in another order."""
    for name in files:
        file = f"checkpoints/step-{step:08d}/{name}.safetensors"
        a, b = load_file(one / file), load_file(other / file)
        assert a.keys() == b.keys()
        for key in a:
            torch.testing.assert_close(b[key], a[key], atol=near, rtol=rtol, msg=key)
    for left, right in zip(lines(one), lines(other), strict=True):
        assert left == pytest.approx(right, rel=logged)


# The largest learning rate and decay that are allowed: every update makes the weights 9,999 times as large.
DIVERGING = {"learning_rate": 100.0, "weight_decay": 100.0, "max_grad_norm": 0.0, "lr_scheduler": "constant"}
DIVERGING |= {"max_steps": 12, "eval_steps": 12, "log_steps": 12}


def newest(run):
    return run / "checkpoints" / "step-00000006"


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
