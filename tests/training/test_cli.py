"""The `csezoo` command as a user types it."""

import json
import subprocess
import sys
import time

import pytest

from csezoo.training.building import build
from csezoo.training.cli import main
from csezoo.training.recipes import make_recipe, recipe_names
from csezoo.training.repository import save_repository
from tests.training.test_sts import senteval  # noqa: F401 (a fixture)


def test_help_comes_in_under_a_second_and_names_every_command():
    command = [sys.executable, "-m", "csezoo.training.cli", "--help"]
    started = time.perf_counter()
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert time.perf_counter() - started < 1
    for name in ("recipes", "train", "evaluate", "verify", "audit", "publish", "weakened"):
        assert name in shown


@pytest.mark.parametrize("command", ["recipes", "evaluate", "verify", "audit", "publish", "weakened"])
def test_every_command_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"example: csezoo {command}" in capsys.readouterr().out


def test_recipes_are_listed(capsys):
    main(["recipes"])
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == recipe_names()


def test_train_is_the_training_command(capsys):
    main(["train", "--help"])
    assert "accelerate launch -m csezoo.training.train RECIPE" in capsys.readouterr().out


def test_evaluate_prints_the_usual_table_and_writes_receipts(bases, senteval, tmp_path, capsys):  # noqa: F811
    recipe = make_recipe({"base_model": str(bases["roberta"]), "name": "tiny"})
    built = build(recipe)
    save_repository(tmp_path / "model", built.model.model, built.serving_tokenizer, recipe, [])
    data = str(senteval.parent if senteval.name == "downstream" else senteval)
    out = tmp_path / "result.json"
    main(["evaluate", str(tmp_path / "model"), "--suite", "sts", "--data", data, "--out", str(out)])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R", "Avg."]
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["model"] == str(tmp_path / "model")
    assert [f"{result['value']:.2f}" for result in report["results"]] == row.split()[1:-1]
    for result in report["results"]:
        assert {"task", "metric", "rows", "sha256", "dataset", "pooling", "dtype", "kind", "versions"} <= result.keys()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["evaluate", "no/such-model"], "no/such-model"),
        (["evaluate", "missing", "--suite", "weather"], "missing is neither"),
        (["publish", "missing", "--to", "org/name"], "missing"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, line, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and line in error and "\n" not in error
