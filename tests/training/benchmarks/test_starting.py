"""`csezoo benchmark start`: from the command to the first update."""

import json

import pytest

from csezoo.training.benchmarks.race import format_benchmark
from csezoo.training.benchmarks.soak import watch
from csezoo.training.benchmarks.starting import SHORT, benchmark_start
from csezoo.training.cli import main
from csezoo.training.errors import UserError
from csezoo.training.recipes import make_recipe
from tests.training.runs import values


@pytest.mark.slow
def test_a_second_start_finds_the_tokens_of_the_first(tiny, train_file, dev_file, tmp_path, capsys):
    """The file is long, because other work on the machine moves a start by a second."""
    recipe = tiny()
    keys = [f"--{key}={recipe[key]}" for key in ("base_model", "train_file", "dev_file")]
    command = [
        "benchmark",
        "start",
        "simcse-bert-base-uncased",
        "--lines",
        "400000",
        "--out",
        str(tmp_path / "out.json"),
    ]
    main([*command, *keys, "--eval_data=none", "--batch_size=8"])
    starts = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["starts"]
    assert list(starts) == ["10000", "400000"]
    assert starts["400000"]["second"]["seconds"] < starts["400000"]["first"]["seconds"]
    assert all(start["memory"] > 50 * 2**20 for both in starts.values() for start in both.values())
    assert "400,000 lines, second start: first update after" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_that_cannot_start_says_why(bases, train_file, dev_file, tmp_path):
    recipe = make_recipe(values("./no_such", train_file, dev_file, tmp_path / "run"))
    with pytest.raises(UserError, match="csezoo.training.train failed: error: .*no_such"):
        benchmark_start(recipe, lines=SHORT + 1)


def test_the_long_file_is_longer_than_the_short_one(tiny):
    recipe = make_recipe(tiny())
    with pytest.raises(UserError, match="lines: 10000 must be more than 10,000"):
        benchmark_start(recipe, lines=SHORT)


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


def test_the_report_has_a_line_for_each_start():
    starts = {10_000: {"first": {"seconds": 9.26, "memory": 2**30}}}
    assert format_benchmark({"starts": starts}) == (
        "10,000 lines, first start: first update after 9.3 s, at most 1,024 MiB"
    )
