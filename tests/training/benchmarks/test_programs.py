"""The benchmarks that watch separate processes: their speed, their memory over time, their time to start."""

import pytest

from csezoo.training.benchmarks.programs import (
    AXES,
    SHORT,
    Sample,
    benchmark_scaling,
    benchmark_soak,
    benchmark_start,
    summary,
    watch,
)
from csezoo.training.benchmarks.race import format_benchmark
from csezoo.training.cli import main
from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from csezoo.training.pictures.benchmarks import draw_scaling, draw_soak


@pytest.mark.slow
def test_scaling_is_measured_by_separate_runs(recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(AXES, "batch_size", (4,))
    report = benchmark_scaling(recipe(), axes=["batch_size"], steps=2, repeats=1)
    points = report["axes"]["batch_size"]
    assert list(points) == ["4"] and all(point["rows per second"] > 0 for point in points.values())
    with pytest.raises(UserError, match="batch_size 4: the run failed: error: .*no_such"):
        benchmark_scaling(recipe(base_model="./no_such"), axes=["batch_size"])


def test_speeds_and_memory_are_drawn(tmp_path):
    point = {"rows per second": 2.0, "runs": [1.0, 2.0, 3.0]}
    draw_scaling({"batch_size": {"16": point, "32": point}, "processes": {"1": point}}, tmp_path / "scaling.png")
    samples = summary([Sample(second, rss=1000 * second, files=5) for second in range(9)])
    draw_soak({"training": samples, "encoding": samples}, tmp_path / "soak.png")
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("scaling.png", "soak.png"))


@pytest.mark.slow
def test_soak_samples_memory_and_files_of_training_and_of_encoding(recipe):
    report = benchmark_soak(recipe(), steps=2, lines=300, every=0.05)
    for program in report["programs"].values():
        assert max(program["rss"]) > 100 * 2**20 and max(program["files"]) > 3
        assert program["second"] == sorted(program["second"])
    assert "encoding: " in format_benchmark(report)


def test_growth_is_measured_from_the_second_quarter_to_the_last():
    leaking = summary([Sample(second, rss=1000 * second, files=5) for second in range(100)])
    assert leaking["growth"] == {"rss": 50_000, "files": 0}
    with pytest.raises(UserError, match="3 samples are too few"):
        summary([Sample(0, 1, 1)] * 3)


@pytest.mark.slow
def test_a_second_start_finds_the_tokens_of_the_first(options, tmp_path, capsys):
    """The file is long, because other work on the machine moves a start by a second."""
    out = tmp_path / "out.json"
    main(["benchmark", "start", "simcse-bert-base-uncased", "--lines", "400000", "--out", str(out), *options])
    starts = read_json(out)["starts"]
    assert list(starts) == ["10000", "400000"]
    assert starts["400000"]["second"]["seconds"] < starts["400000"]["first"]["seconds"]
    assert all(start["memory"] > 50 * 2**20 for both in starts.values() for start in both.values())
    assert "400,000 lines, second start: first update after" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", [benchmark_soak, benchmark_start])
def test_a_run_that_cannot_start_says_why(recipe, benchmark):
    with pytest.raises(UserError, match="csezoo.training.train failed: error: .*no_such"):
        benchmark(recipe(base_model="./no_such"), lines=SHORT + 1)


def test_a_program_is_stopped_when_it_prints_a_text_and_its_environment_is_added(tmp_path):
    samples = watch(["calendar", "2026"], 0.01)
    assert all(0 <= sample.mapped <= sample.rss for sample in samples)
    (tmp_path / "waiting.py").write_text(
        "import os, sys, time; print(os.environ['WORD'], file=sys.stderr, flush=True); time.sleep(99)"
    )
    samples = watch(["waiting"], 0.01, until="ready", environment={"WORD": "ready", "PYTHONPATH": str(tmp_path)})
    assert samples[-1].second < 30


@pytest.mark.parametrize(
    ("code", "line"),
    [("", "short ended before it printed 'ready'"), ("raise SystemExit(3)", "short failed: it printed nothing")],
)
def test_a_program_that_ends_without_a_word_is_an_error_of_one_line(code, line, tmp_path):
    (tmp_path / "short.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError, match=line):
        watch(["short"], 0.01, until="ready", environment={"PYTHONPATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (
            {"starts": {10_000: {"first": {"seconds": 9.26, "memory": 2**30}}}},
            "10,000 lines, first start: first update after 9.3 s, at most 1,024 MiB",
        ),
        ({"axes": {"batch_size": {"16": {"rows per second": 12.34}}}}, "batch_size 16: 12.3 rows per second"),
    ],
)
def test_a_report_has_a_line_for_each_start_and_point(report, text):
    assert format_benchmark(report) == text
