"""The benchmark of an epoch divides an update's time into parts that add up."""

import pytest

from csezoo.training.benchmarks.hardware.epoch import benchmark_epoch
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from tests.training.benchmarks.test_training import recipe  # noqa: F401 (a fixture)


def test_the_parts_of_an_update_add_up_to_it(recipe):  # noqa: F811
    report = benchmark_epoch(recipe("simcse", eval_steps=5), steps=2)
    parts = report["parts"]
    assert set(parts) == {"data", "products", "elementwise", "checkpoint", "host"}
    assert min(parts[name] for name in ("data", "products", "elementwise", "checkpoint")) > 0
    # The profiler makes operators slower, so that nothing may be left for the host.
    assert sum(parts.values()) > 0.99 * report["update"]
    assert report["epoch"] == pytest.approx(report["update"] * 1e6 / report["batch_size"])
    assert 0 < report["floor"] < report["update"]
    assert list(report["largest"].values()) == sorted(report["largest"].values(), reverse=True)


def test_the_command_writes_a_report(bases, train_file, tmp_path, capsys):
    out = tmp_path / "epoch.json"
    keys = ["--base_model", str(bases["bert"]), "--train_file", str(train_file), "--eval_data", "none"]
    options = ["--steps", "1", "--out", str(out), "--batch_size", "8", *keys]
    main(["benchmark", "epoch", "simcse-bert-base-uncased", *options])
    assert read_json(out)["layout"] == "packed"
    printed = capsys.readouterr().out
    assert "10^6 sentences: " in printed and "elementwise" in printed and "floor by operations" in printed


def test_at_least_one_step(recipe):  # noqa: F811
    with pytest.raises(UserError, match="steps: 0 must be at least 1"):
        benchmark_epoch(recipe("simcse"), steps=0)
