"""A table with one run that is long enough to be killed in the middle, and the same run without that."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

COMMAND = [sys.executable, "-m", "csezoo.training.cli", "reproduce", "prdsimcse/table-13", "--rows", "100 %"]
# The number of threads changes the last bits of a sum.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
UPDATES, CHECKPOINT = 150, 15


@pytest.fixture(scope="session")
def long_profile(bases, train_file, dev_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "long.yaml"
    keys = {"eval_data": "none", "dev_file": str(dev_file), "batch_size": 8, "report_to": "none"}
    content = {
        "models": {"google-bert/bert-base-uncased": str(bases["bert"])},
        "datasets": {"princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt": {"file": str(train_file)}},
        "max_updates": UPDATES,
        "set": {**keys, "eval_steps": CHECKPOINT},
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def table(long_profile):
    """The command that makes the table in a directory, for `Popen`."""

    def arguments(out: Path, *options: str, seeds: tuple[int, ...] = (1,)) -> dict:
        words = ["--seeds", *map(str, seeds), "--profile", str(long_profile), "--out", str(out), *options]
        return {"args": [*COMMAND, *words], "env": dict(ENVIRONMENT)}

    return arguments


@pytest.fixture(scope="session")
def uninterrupted(table, tmp_path_factory):
    """The directory of the run that nobody stopped."""
    out = tmp_path_factory.mktemp("uninterrupted")
    subprocess.run(**table(out), check=True)
    return only_run(out)


def only_run(out: Path) -> Path:
    (run,) = out.glob("runs/*/seed-1")
    return run


def wait_for_the_middle(out: Path, command: subprocess.Popen, seed: int = 1) -> Path:
    """Wait until a run has a checkpoint, and return its directory."""
    deadline = time.monotonic() + 300
    while not (found := list(out.glob(f"runs/*/seed-{seed}/checkpoints/step-*"))) and time.monotonic() < deadline:
        assert command.poll() is None
        time.sleep(0.05)
    return found[0].parents[1]


def training_processes(run: Path) -> list[psutil.Process]:
    """Return the processes of `accelerate launch` for a run; the first is the oldest."""
    found = [p for p in psutil.process_iter(["cmdline"]) if any(str(run) in w for w in p.info["cmdline"] or ())]
    return sorted((p for p in found if "csezoo.training.train" in p.info["cmdline"]), key=lambda p: p.create_time())


def assert_same(run: Path, other: Path) -> None:
    """The weights and the dev curve are the same, bit for bit."""
    for name in ("best/model.safetensors", "metrics.jsonl"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name
