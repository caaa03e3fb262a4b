"""The `csezoo` command as a user types it."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from csezoo.training.cli.parser import build_parser, main
from csezoo.training.evaluation.glue.data import TASKS
from csezoo.training.evaluation.suites import LOADERS
from csezoo.training.files import read_json
from csezoo.training.loop.building import build
from csezoo.training.publishing.repository import save_repository
from csezoo.training.recipes import make_recipe, recipe_names
from tests.interpreters import EACH_COMMAND

ROOT = Path(__file__).parents[3]


def started(*commands):
    """What each command shows, and the libraries that are imported by then, in a new interpreter for all."""
    code = [sys.executable, "-c", EACH_COMMAND, json.dumps([command.split() for command in commands])]
    done = subprocess.run(code, capture_output=True, text=True, check=True, cwd=ROOT)
    answers = json.loads(done.stdout.splitlines()[-1])
    return [(out + err, set(imported)) for _, out, err, imported in answers]


HEAVY = {"torch", "transformers", "datasets", "accelerate", "numpy", "huggingface_hub"}
# Lists and mistakes, each with a part of what is shown.
QUICK = {
    "recipes": "diffaug-bert-base-uncased-semi ",
    "train --help": "accelerate launch -m csezoo.training.train RECIPE",
    "models --method simcse --trained": "simcse-minilm ",
    "table model_cards/simcse-minilm/results.json": "| simcse-minilm |",
    "train no-such": "error: no recipe 'no-such'",
    "train simcse-bert-base-uncased --lerning_rate 1": "'lerning_rate': did you mean learning_rate?",
    "train diffaug-bert-base-uncased-semi --prefx_length 1": "'prefx_length': did you mean prefix_length?",
    "train l2pcsr-bert-base-uncased --method l2pcsr+diffcse --rdt_weight 1": "did you mean rtd_weight?",
    "train quickstart --batch_size many": "error: batch_size: 'many' is not a whole number",
    "benchmark training no-such": "error: no recipe 'no-such'",
    "reproduce no-such": "error: no item 'no-such'",
}


def test_help_names_every_command_without_a_heavy_import():
    ((shown, imported),) = started("--help")
    assert not (HEAVY | {"yaml"}) & imported
    for name in ("train", "evaluate", "encode", "publish", "reproduce"):
        assert name in shown


def test_a_list_or_a_mistake_is_shown_without_a_heavy_import():
    for (command, part), (shown, imported) in zip(QUICK.items(), started(*QUICK), strict=True):
        assert part in shown
        assert not HEAVY & imported, command


def parsers(parser):
    """A parser and those of its sub-commands, at every depth."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


@pytest.mark.parametrize("parser", list(parsers(build_parser())), ids=lambda parser: parser.prog)
def test_every_option_is_described_with_its_default_and_every_command_has_an_example(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            assert set(action.choices) == {choice.dest for choice in action._choices_actions if choice.help}
            continue
        assert action.help, action.option_strings or action.dest
        if not (action.required or isinstance(action.default, bool) or action.default in (None, [], "==SUPPRESS==")):
            assert "default" in action.help, action.option_strings
    if parser.prog != "csezoo":
        example = re.fullmatch(r"example: (.+)", parser.epilog)[1]
        assert example.startswith(parser.prog)


def test_help_and_documentation_name_every_suite_and_every_task_of_glue(capsys):
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    for command, names in (("evaluate", LOADERS), ("glue", TASKS)):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown = re.sub(r"-\n\s+", "-", capsys.readouterr().out)  # argparse breaks lines at hyphens
        assert all(re.search(rf"\b{name}\b", shown) and name in page for name in names), command


def test_an_option_that_is_given_twice_has_the_values_of_both():
    parser = build_parser()
    given = ["reproduce", "x", "--set", "a=1", "b=2", "--set", "c=3", "--seeds", "1", "--launch=--x"]
    options = parser.parse_args(given)
    assert options.set == ["a=1", "b=2", "c=3"] and options.seeds == [1]
    assert parser.parse_args(["glue", "m", "--tasks", "RTE", "--seeds", "1", "--seeds", "2"]).seeds == [1, 2], (
        "and not the default"
    )
    assert parser.parse_args(["encode", "m", "f", "--to", "a", "--to", "b"]).to == "b", "one value: the last"
    assert parser.parse_args(["glue", "m", "--tasks", "RTE"]).seeds == [42]


def test_recipes_are_listed(capsys):
    main(["recipes"])
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == recipe_names()
    assert re.search(r"^adapt +simcse +yours \(--base_model\)$", shown, re.MULTILINE)


def test_evaluate_prints_a_table_of_the_suite_and_writes_receipts(bases, senteval, tmp_path, capsys):
    recipe = make_recipe({"base_model": str(bases["roberta"]), "name": "tiny"})
    built = build(recipe)
    save_repository(tmp_path / "model", built.model.model, built.serving_tokenizer, recipe)
    out = tmp_path / "result.json"
    main(["evaluate", str(tmp_path / "model"), "--suite", "sts", "--data", str(senteval), "--out", str(out)])
    captured = capsys.readouterr()
    header, row = captured.out.splitlines()
    assert header.split() == ["model", "STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R", "Avg."]
    report = read_json(out)
    assert report["model"] == str(tmp_path / "model")
    assert [f"{result['value']:.2f}" for result in report["results"]] == row.split()[1:-1]
    for result in report["results"]:
        assert {"task", "metric", "rows", "sha256", "dataset", "pooling", "dtype", "kind", "versions"} <= result.keys()
        assert f"warning: {result['task']}: the data differs from the released data" in captured.err


def test_own_pairs_replace_the_default_suite(bases, dev_file, tmp_path, capsys):
    out = tmp_path / "result.json"
    main(["evaluate", str(bases["bert"]), "--pooling", "cls", "--pairs", str(dev_file), "--out", str(out)])
    assert capsys.readouterr().out.split()[:2] == ["model", "dev"]
    (result,) = read_json(out)["results"]
    assert (result["suite"], result["task"], result["metric"]) == ("pairs", "dev", "spearman")
    assert result["dataset"] == "dev.csv" and result["rows"] == 96


@pytest.mark.parametrize("command", ["recipes", "train --help"])
def test_a_reader_that_stops_early_is_no_error(command):
    """For example `csezoo recipes | head -2`."""
    reader, writer = os.pipe()
    os.close(reader)
    code = [sys.executable, "-m", "csezoo.training.cli", *command.split()]
    done = subprocess.run(code, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_imports_no_library_that_only_other_tasks_need():
    commands = ("compare no-such no-such", "portrait no-such --of layers --out layers.png")
    for shown, imported in started(*(f"{command} --data SentEval" for command in commands)):
        assert "error: " in shown and "torch" in imported
        assert not {"sklearn", "mteb", "sentence_transformers"} & imported
