"""The benchmark of a device measures every method in limited time, and says what it has left out."""

import pytest

from csezoo.modeling import METHODS
from csezoo.training.benchmarks.device import RECIPES, Setting, benchmark_device, measure, settings, write_files
from csezoo.training.benchmarks.race import format_benchmark
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from csezoo.training.recipes import load_recipe


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("device"), "tiny", rows=40)


@pytest.mark.parametrize("method", RECIPES)
def test_the_updates_of_every_method_are_measured_padded_and_packed(files, method):
    padded, packed = measure(Setting(method, 4, "no"), files, steps=1)
    assert (padded["layout"], packed["layout"]) == ("padded", "packed")
    assert packed["padding computed"] <= padded["padding computed"]  # L2P-CSR attends to it, as in its release
    assert packed["R"] > 0
    assert packed["seconds for 10^6 sentences"] == pytest.approx(250_000 / packed["updates per second"])


def test_every_method_of_the_zoo_has_a_recipe_to_measure():
    assert {load_recipe(name).method for name in RECIPES.values()} == set(METHODS)


def test_the_settings_begin_with_the_most_important_method_and_precision():
    planned = settings(list(RECIPES), [64, 512], ["bf16", "fp16", "no"])
    assert [str(setting) for setting in planned[:2]] == ["simcse, 64 sentences, bf16", "simcse, 512 sentences, bf16"]
    assert len(planned) == len(set(planned)) == 10 * 2 * 2 + 2 * 2 + 9 * 2
    assert not any(setting.compiled for setting in settings(["simcse"], [64], ["bf16"], compiled=False))


def test_the_command_writes_a_report_and_a_table(tmp_path, capsys):
    out = tmp_path / "device.json"
    options = ["--batch_sizes", "4", "--precisions", "no", "--eager", "--steps", "1", "--out", str(out)]
    main(["benchmark", "device", "--size", "tiny", "--methods", "simcse", *options])
    report = read_json(out)
    assert (report["left"], report["failed"]) == ([], {})
    assert [one["layout"] for one in report["updates"]] == ["padded", "packed"]
    assert report["encoding"]["float32"] > 0 < report["evaluation"]
    assert format_benchmark(report) in capsys.readouterr().out


def test_nothing_begins_when_the_time_is_over():
    report = benchmark_device(size="tiny", methods=["simcse"], batch_sizes=[4], precisions=["no"], seconds=0)
    assert report["updates"] == [] and len(report["left"]) == 2
    assert "not measured: simcse, 4 sentences, no, compiled" in format_benchmark(report)


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="methods: 'simsce' must be one of simcse, promptbert"):
        benchmark_device(methods=["simsce"])
