"""The benchmark of memory counts the tensors of both sides, and updates keep little beside their encoder passes."""

import json

import pytest
import torch

from csezoo.training.benchmarks.memory import allocated_at_most, benchmark_memory
from csezoo.training.benchmarks.race import format_benchmark
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from tests.training.benchmarks.test_training import recipe  # noqa: F401 (a fixture)


def test_tensors_that_exist_at_different_times_are_not_added():
    def run():
        for _ in range(3):
            torch.zeros(1000).add_(1)

    assert allocated_at_most(run) < 2 * 4000


# Of a tiny encoder, where vectors, masks and prefixes are large beside its activations.
@pytest.mark.parametrize(
    ("method", "most"), {"simcse": 1.01, "prdsimcse": 1.03, "diffcse": 1.01, "sgopt": 1.09, "l2pcsr": 1.13}.items()
)
def test_an_update_takes_little_more_memory_than_its_encoder_passes(recipe, method, most):  # noqa: F811
    report = benchmark_memory(recipe(method))
    peaks = report["peak bytes"]
    assert report["memory ratio"] == peaks["ours"] / peaks["usual"] < most
    assert report["kept bytes"] < peaks["usual"] and report["floor"] >= 1


def test_the_floor_has_the_gradients_of_the_heads(recipe):  # noqa: F811
    report = benchmark_memory(recipe("simcse", projection="tanh"))
    weights = 32 * 32 + 32  # a linear layer
    assert report["peak bytes"]["usual"] * (report["floor"] - 1) == pytest.approx(4 * weights)


def test_the_command_writes_a_report(bases, train_file, tmp_path, capsys):
    out = tmp_path / "memory.json"
    keys = ["--base_model", str(bases["bert"]), "--train_file", str(train_file), "--eval_data", "none"]
    main(["benchmark", "memory", "simcse-bert-base-uncased", "--out", str(out), "--batch_size", "8", *keys])
    report = json.loads(out.read_text(encoding="utf-8"))
    assert capsys.readouterr().out.strip().endswith(format_benchmark(report))
    assert report["layout"] == "packed" and report["machine"]["cpus"] >= 1


def test_at_least_one_step(recipe):  # noqa: F811
    with pytest.raises(UserError, match="steps: 0 must be at least 1"):
        benchmark_memory(recipe(), steps=0)
