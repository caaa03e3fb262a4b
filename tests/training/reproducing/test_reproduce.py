"""`csezoo reproduce`: a table is made, run by run, and continues where it was stopped."""

import csv
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from safetensors.torch import load_file, save_file

from csezoo.training.cli import main
from csezoo.training.cli.reproducing import begin
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.significance import Similarities, paired_bootstrap
from csezoo.training.evaluation.tasks.sts import PairTask
from csezoo.training.files import read_json, write_json
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import load_recipe
from csezoo.training.reproducing import manifests
from csezoo.training.reproducing import runs as making
from csezoo.training.reproducing.against import compared
from csezoo.training.reproducing.columns import Column
from csezoo.training.reproducing.manifests import load_item
from csezoo.training.reproducing.measuring import read_results
from csezoo.training.reproducing.plan import plan
from csezoo.training.reproducing.pooling import pool
from csezoo.training.reproducing.profiles import load_profile
from csezoo.training.reproducing.reports import describe, state, unique_runs
from csezoo.training.reproducing.runs import make, ranks, train
from csezoo.training.reproducing.writing import table_rows, write_item
from tests.conftest import SENTENCES

ITEM = "prdsimcse/table-13"  # a figure and a table, of dev alone
ROWS = ["20 %", "100 %"]


@pytest.fixture(scope="module")
def profile(bases, train_file, dev_file, tmp_path_factory):
    """A tiny BERT, a few sentences, two updates."""
    path = tmp_path_factory.mktemp("profile") / "tiny.yaml"
    recipes = {"eval_data": "none", "dev_file": str(dev_file), "batch_size": 8, "eval_steps": 2, "report_to": "none"}
    content = {
        "description": "a tiny BERT",
        "models": {"google-bert/bert-base-uncased": str(bases["bert"])},
        "datasets": {"princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt": {"file": str(train_file)}},
        "max_updates": 2,
        "set": recipes,
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def here(run):
    """Train a run in this process, with the words of its command."""
    recipe, *words = run.command()
    run_recipe(load_recipe(recipe, dict(word.removeprefix("--").split("=", 1) for word in words)), show=False)


def planned(out, profile, **options):
    return plan(load_item(ITEM), out, rows=ROWS, seeds=[1, 2], profile=load_profile(profile), **options)


def write(out, rows, failed):
    item = load_item(ITEM)
    lines = [pool(row, item.columns, item.source, failed) for row in rows]
    return write_item(item, rows, lines, out / item.name, "hub")


@pytest.fixture(scope="module")
def made(profile, tmp_path_factory):
    """The item, stopped after two of its four runs and continued: its directory, and what was trained."""
    out = tmp_path_factory.mktemp("made")
    rows, trained = planned(out, profile), []

    def stopped_after_two(run):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(run.directory)
        here(run)

    with pytest.raises(KeyboardInterrupt):
        make(unique_runs(rows), load_item(ITEM).columns, train=stopped_after_two)
    first = list(trained)

    def rest(run):
        trained.append(run.directory)
        here(run)

    failed = make(unique_runs(rows), load_item(ITEM).columns, train=rest)
    write(out, rows, failed)
    return out, first, trained


def test_the_same_command_continues_an_interrupted_table(made, profile):
    out, first, trained = made
    assert len(first) == 2 and len(trained) == len(set(trained)) == 4
    assert "\n0 runs to train, 0 models to evaluate; 0 updates" in describe(load_item(ITEM), planned(out, profile))


def test_a_table_has_ours_beside_the_papers(made):
    out, *_ = made
    row = read_json(out / ITEM / "results.json")["rows"][0]
    cell = row["cells"]["STS-B dev."]
    scores = [run["results"][0]["value"] for run in row["runs"]]
    assert cell["n"] == 2 and cell["mean"] == pytest.approx(sum(scores) / 2)
    assert cell["paper"] == 82.3 and cell["difference"] == pytest.approx(cell["mean"] - 82.3)
    assert row["reasons"] and "base_model" in row["reasons"][0] and "(a tiny BERT)" in row["reasons"][0]
    assert "sha256" in row["runs"][0]["results"][0]  # the receipt of the dev pairs
    assert {"base_model", "train_file"} <= row["runs"][0]["training"]["origin"].keys()


def test_every_format_has_the_same_rows(made):
    out, *_ = made
    directory = out / ITEM
    table = list(csv.reader((directory / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert [row[0] for row in table[1:5]] == ["20 % †", "20 %, paper †", "20 %, difference", "20 %, z"]
    assert table[2][1] == "82.30"
    markdown = (directory / "table.md").read_text(encoding="utf-8")
    assert "| 20 %, paper † | 82.30 |" in markdown and "* † 20 %: other base_model" in markdown
    assert "82.30" in (directory / "table.tex").read_text(encoding="utf-8")
    assert "<td>82.30</td>" in (directory / "table.html").read_text(encoding="utf-8")
    assert (directory / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_a_row_that_were_trained_on_different_sentences_are_marked(made, profile, tmp_path):
    shutil.copytree(made[0], tmp_path / "made")
    (row, _) = planned(tmp_path / "made", profile)
    item = load_item(ITEM)
    assert not any("different" in reason for reason in pool(row, item.columns, "", {}).reasons)
    path = row.runs[1].directory / "results.json"
    results = read_json(path)
    results["training"]["origin"]["train_file"] = "of another time"
    write_json(path, results)
    assert "its runs have different train_file" in pool(row, item.columns, "", {}).reasons


PAIRS = list(zip(SENTENCES[:50], SENTENCES[30:80], strict=True))
TASKS = [PairTask(name, PAIRS, [float(len(a + b) % n) for a, b in PAIRS], "here") for name, n in (("A", 5), ("B", 7))]


@pytest.fixture
def different(made, profile, tmp_path):
    """The item, with other weights in each run: two updates change too little to tell its models apart."""
    shutil.copytree(made[0], tmp_path / "made")
    rows = planned(tmp_path / "made", profile)
    for seed, run in enumerate(unique_runs(rows)):
        file, generator = Path(run.model) / "model.safetensors", torch.Generator().manual_seed(seed)
        weights = {name: w + 0.1 * torch.randn(w.shape, generator=generator) for name, w in load_file(file).items()}
        save_file(weights, file, {"format": "pt"})
        results = run.directory / "results.json"
        content = read_json(results)
        for row in content["results"]:
            row["model_sha256"] = load_encoder(run.model)[1]["model_sha256"]
        write_json(results, content)
    return rows


def test_rows_are_compared_with_one_of_them_over_all_seeds(different):
    rows = different
    item = replace(load_item(ITEM), columns=[Column("Avg.", "sts")], against="20 %")
    pooled = [pool(row, item.columns, "", {}) for row in rows]
    first, second = compared(item, rows, pooled, TASKS)
    assert first == pooled[0], "the row that the others are compared with"
    theirs, ours = ([ranks(run, TASKS) for run in row.runs] for row in rows)
    assert len(theirs) == len(ours) == 2
    expected = paired_bootstrap(
        [
            Similarities(
                np.array(task.scores), np.stack([run[n] for run in ours]), np.stack([run[n] for run in theirs])
            )
            for n, task in enumerate(TASKS)
        ]
    )
    assert compared(item, rows, pooled, TASKS, [run.directory for run in rows[0].runs]) == pooled
    cell = second.cells["Avg."]
    assert (cell.low, cell.high, cell.p) == (expected["low"], expected["high"], expected["p"])
    assert cell.low < expected["difference"] < cell.high
    (text,) = (cells["Avg."] for name, cells in table_rows([second]) if name == "100 %, compared")
    assert text == f"{cell.low:+.2f} to {cell.high:+.2f}, p {cell.p:.3f}"


def test_kept_ranks_need_no_weights_and_those_of_other_weights_are_not_used(different):
    run, other = (row.runs[0] for row in different)
    kept = ranks(run, TASKS)
    shutil.rmtree(run.model)
    assert np.array_equal(kept, ranks(run, TASKS))
    shutil.copytree(other.model, run.model)
    shutil.copy(other.directory / "results.json", run.directory)
    changed = ranks(run, TASKS)
    assert np.array_equal(changed, ranks(other, TASKS)) and not np.array_equal(changed, kept)


def test_what_was_measured_of_a_run_that_is_trained_again_is_measured_again(made, profile, tmp_path):
    shutil.copytree(made[0], tmp_path / "made")
    run = planned(tmp_path / "made", profile)[0].runs[0]
    (run.directory / "results.json").unlink()
    old = {"suite": "sts", "task": "STS12", "metric": "spearman", "value": 1.0}
    content = json.dumps({"model": "old", "complete": ["sts"], "results": [old]})
    (run.directory / run.evaluation).write_text(content, encoding="utf-8")
    assert not make([run], load_item(ITEM).columns, pairs=TASKS, train=here)
    assert old not in read_results(run)
    shutil.rmtree(run.model)
    assert len(ranks(run, TASKS)) == 2, "they are kept when the run is measured, not when the table is made"


def test_the_state_of_an_item_counts_its_finished_runs(made, profile):
    out, *_ = made
    assert state(load_item(ITEM), out) == "0 of 8 runs"  # those of the paper's material


def test_the_list_counts_the_runs_on_the_same_data_however_it_is_named(
    tmp_path, bases, real_data, monkeypatch, capsys
):
    rows = [{"name": "cls", "untrained": str(bases["bert"]), "pooling": "cls"}]
    manifest = {"title": "t", "source": "s", "columns": ["dev"], "rows": rows}
    (tmp_path / "items" / "zoo").mkdir(parents=True)
    (tmp_path / "items" / "zoo" / "one.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    monkeypatch.setattr(manifests, "ITEMS", tmp_path / "items")
    data, out = str(real_data / "data" / "senteval"), str(tmp_path / "out")
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump({"data": data}), encoding="utf-8")
    main(["reproduce", "zoo/one", "--data", data, "--out", out])
    for words, expected in (
        (["--data", f"{data}/"], "made (1 runs)"),
        (["--profile", str(tmp_path / "profile.yaml")], "made (1 runs)"),
        (["--data", data, "--seeds", "1", "2"], "made (1 runs)"),
        ([], "0 of 1 runs"),
    ):
        capsys.readouterr()
        main(["reproduce", "--out", out, *words])
        assert expected in capsys.readouterr().out


def test_a_finished_table_is_written_again_without_a_run(made, profile):
    out, *_ = made
    rows = planned(out, profile)

    def refuse(run):
        raise AssertionError(run)

    assert make(unique_runs(rows), load_item(ITEM).columns, train=refuse) == {}


@pytest.fixture
def copy_made(made):
    """Makes a run by copying it from the item that is made: a finished run without the time of training it."""

    def copy(run):
        made_before = made[0] / "runs" / run.directory.parent.name / run.directory.name
        shutil.copytree(made_before, run.directory, dirs_exist_ok=True)

    return copy


def test_a_run_that_fails_leaves_the_others_and_is_named(tmp_path, profile, copy_made):
    rows = planned(tmp_path, profile)[:1]

    def fail_once(run):
        if run.recipe.seeds == [1]:
            raise UserError("exit code 2: no space")
        copy_made(run)

    failed = make(unique_runs(rows), load_item(ITEM).columns, train=fail_once)
    assert list(failed.values()) == ["exit code 2: no space"]
    (line,) = [pool(row, load_item(ITEM).columns, "paper", failed) for row in rows]
    assert line.cells["STS-B dev."].n == 1
    assert line.reasons[-1] == "a run failed: exit code 2: no space"


CLAIM = """
import sys
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("claimed", flush=True)
input()
"""


@pytest.mark.parametrize("name", [".claim", ".lock"])  # of another `csezoo reproduce`, and of training
def test_a_run_of_another_process_is_left_to_it_and_taken_over_when_that_is_killed(
    tmp_path, profile, monkeypatch, copy_made, name
):
    first, second = unique_runs(planned(tmp_path, profile)[:1])
    first.directory.mkdir(parents=True)
    lock = first.directory / name
    monkeypatch.setattr(making, "WAIT", 0.1)
    order = []
    with subprocess.Popen([sys.executable, "-c", CLAIM, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"claimed\n"

        def record(run):
            order.append(run.directory)
            copy_made(run)
            if run == second:
                other.kill()

        make([first, second], load_item(ITEM).columns, train=record)
    assert order == [second.directory, first.directory]


def test_an_untrained_model_is_evaluated_and_drawn(tmp_path, bases, real_data):
    profile = tmp_path / "profile.yaml"
    content = {"models": {"google-bert/bert-base-uncased": str(bases["bert"])}, "description": "tiny"}
    profile.write_text(yaml.safe_dump({**content, "data": str(real_data / "data" / "senteval")}), encoding="utf-8")
    words = ["sgopt/figure-5", "--rows", "BERT-base", "--profile", str(profile), "--out", str(tmp_path / "out")]
    main(["reproduce", *words])
    directory = tmp_path / "out" / "sgopt" / "figure-5"
    (row,) = read_json(directory / "results.json")["rows"]
    assert row["cells"]["STS-B dev."]["n"] == 1 and row["reasons"] == ["another model than in the paper (tiny)"]
    assert row["runs"][0]["results"][0]["pooling"] == "cls"
    assert len(list(directory.glob("BERT-base-*.png"))) == 1


def test_a_picture_stays_when_the_weights_of_its_run_are_deleted(made, profile, tmp_path, caplog):
    """As `docs/reproducing.md` allows."""
    row = planned(made[0], profile)[0]
    row = replace(row, runs=[replace(row.runs[0], model=str(tmp_path / "deleted"))])
    for drawn in (0, 1):
        written = write_item(load_item("diffcse/figure-2"), [row], [], tmp_path, "none")
        pictures = [path for path in written if path.suffix == ".png"]
        assert len(pictures) == drawn and "is not drawn anew: " in caplog.text
        name = caplog.records[-1].args[0]
        name.write_bytes(b"a picture")
    assert pictures == [name] and name.read_bytes() == b"a picture"


def test_a_table_keeps_the_rows_of_earlier_commands(tmp_path, bases, real_data, monkeypatch):
    rows = [{"name": each, "pooling": each, "untrained": str(bases["bert"])} for each in ("cls", "mean", "max")]
    rows.append({"name": "SimCSE", "recipe": "simcse-bert-base-uncased"})  # which has no prefixes to set
    manifest = {"title": "t", "source": "s", "columns": ["dev"], "rows": rows}
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "poolings.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    monkeypatch.setattr(manifests, "ITEMS", tmp_path)
    options = ["--set", "prefix_length=4", "--data", str(real_data / "data" / "senteval")]
    for row in ("mean", "cls"):
        main(["reproduce", "zoo/poolings", "--rows", row, *options, "--out", str(tmp_path / "out")])
    written = read_json(tmp_path / "out" / "zoo" / "poolings" / "results.json")
    assert [row["name"] for row in written["rows"]] == ["cls", "mean"]


@pytest.mark.slow
def test_the_command_compares_the_rows_of_a_table(tmp_path, bases, real_data, monkeypatch):
    row = {"untrained": str(bases["bert"])}
    rows = [{"name": pooling, "pooling": pooling, **row} for pooling in ("cls", "mean")]
    manifest = {"title": "t", "source": "s", "columns": ["sts-average"], "against": "cls", "rows": rows}
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "poolings.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    monkeypatch.setattr(manifests, "ITEMS", tmp_path)
    data = str(real_data / "data" / "senteval")
    main(["reproduce", "zoo/poolings", "--data", data, "--out", str(tmp_path / "out")])
    table = (tmp_path / "out" / "zoo" / "poolings" / "table.md").read_text(encoding="utf-8")
    assert re.search(r"^\| mean, compared \| .+ to .+, p [01]\.\d{3} \|$", table, re.MULTILINE)
    assert "cls, compared" not in table and "the difference from cls" in table


def test_a_quoted_row_needs_no_run(tmp_path, capsys):
    main(["reproduce", "l2pcsr/table-1", "--rows", "USE", "--out", str(tmp_path)])
    assert str(tmp_path / "l2pcsr" / "table-1" / "table.md") in capsys.readouterr().out
    text = (tmp_path / "l2pcsr" / "table-1" / "table.md").read_text(encoding="utf-8")
    assert "| other, USE, paper † | 64.49 |" in text and "quoted: the zoo has no USE" in text


def test_mistakes_of_the_command_are_one_line(tmp_path, capsys):
    for words in (["--set", "seeds"], ["--set", "seeds=7"], ["--set", "output_dir=x"], ["--profile", "nowhere.yaml"]):
        with pytest.raises(SystemExit) as error:
            main(["reproduce", "prdsimcse/table-1", "--out", str(tmp_path), *words])
        assert error.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_one_process_makes_a_table_however_many_train(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="starts `accelerate launch` itself; run it without, and give the options as"):
        begin(tmp_path / "table")
    assert not (tmp_path / "table").exists()


@pytest.mark.slow
def test_a_run_is_trained_in_a_process_of_its_own(tmp_path, profile):
    (run, _) = unique_runs(planned(tmp_path, profile)[:1])
    train(run)
    assert (run.directory / "best" / "model.safetensors").is_file()
    assert (run.directory / "train.log").read_text(encoding="utf-8").startswith(f"$ {sys.executable} -m accelerate")
    (broken, *_) = unique_runs(planned(tmp_path, profile, overrides={"train_file": "nowhere.txt"}))
    with pytest.raises(UserError, match="exit code .*nowhere.txt"):
        train(broken)


def test_a_failed_run_is_named_after_its_last_attempt(tmp_path, profile, monkeypatch):
    (run, _) = unique_runs(planned(tmp_path, profile)[:1])
    for attempt, reason in (
        ("print('error: no data'); exit(2)", "no data"),
        ("exit('out of memory')", "out of memory"),
    ):
        monkeypatch.setattr(making, "launch", lambda run, launcher, attempt=attempt: [sys.executable, "-c", attempt])
        with pytest.raises(UserError, match=f"exit code .: {reason}"):
            train(run)


def test_a_seed_whose_training_fails_is_a_failure_although_there_are_results_of_other_seeds(
    tmp_path, profile, monkeypatch, copy_made
):
    (run, _) = unique_runs(planned(tmp_path, profile)[:1])
    copy_made(run)
    monkeypatch.setattr(making, "launch", lambda run, launcher: [sys.executable, "-c", "exit('out of memory')"])
    more = replace(run, recipe=replace(run.recipe, seeds=[1, 2]))
    (reason,) = make([more], []).values()
    assert reason.startswith("exit code 1: out of memory")


@pytest.mark.slow
def test_a_stopped_table_stops_its_training(tmp_path, profile):
    content = yaml.safe_load(Path(profile).read_text(encoding="utf-8")) | {"max_updates": 100_000}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    words = [ITEM, "--rows", "100 %", "--seeds", "1", "--profile", str(tmp_path / "long.yaml"), "--out", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-m", "csezoo.training.cli", "reproduce", *words]) as command:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("runs/*/seed-1/checkpoints/step-*")) and time.monotonic() < deadline:
            time.sleep(0.5)
        command.terminate()
        assert command.wait() == 143
    (run,) = tmp_path.glob("runs/*/seed-1")
    FileLock(run / ".lock").acquire(timeout=60)  # no process trains in it
    assert not (run / "results.json").is_file()
