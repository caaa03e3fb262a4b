"""A search: its trials are runs, it continues where it was stopped, and its winner is trained on fresh seeds."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState
from safetensors.numpy import save_file

from csezoo.training.cli.tuning import OBJECTIVES
from csezoo.training.errors import UserError
from csezoo.training.files import read_json, write_json
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import load_recipe
from csezoo.training.reproducing.measuring import is_trained, read_results
from csezoo.training.tuning.objectives import COLUMNS, WITHOUT_LABELS, read_sentences
from csezoo.training.tuning.search import Search, begun, best, make_trial, missing
from csezoo.training.tuning.winner import winner_of, write_report

RATES = [0.0, 1.0e-4, 1.0e-3]


@pytest.fixture(scope="module")
def keys(bases, train_file, dev_file):
    """A tiny BERT, a few sentences, two updates."""
    keys = {"base_model": str(bases["bert"]), "base_revision": None, "train_file": str(train_file), "dataset": None}
    keys |= {"dataset_file": None, "dataset_revision": None, "eval_data": "none", "dev_file": str(dev_file)}
    return {**keys, "batch_size": 8, "max_steps": 2, "eval_steps": 2, "report_to": "none"}


def search_in(out, keys, **changes):
    space = {"learning_rate": CategoricalDistribution(RATES)}
    search = Search("simcse-bert-base-uncased", space, "sts-dev", 3, Path(out), keys)
    return replace(search, **changes)


def here(run, launcher=(), watch=None):
    """Train a run in this process, with the words of its command."""
    recipe, *words = run.command()
    run_recipe(load_recipe(recipe, dict(word.removeprefix("--").split("=", 1) for word in words)), show=False)


@pytest.fixture(scope="module")
def grid(keys, tmp_path_factory):
    """A grid of three points. The process of its second trial is stopped, and the same command continues."""
    search = search_in(tmp_path_factory.mktemp("grid"), keys)
    make_trial(search, train=here)

    def stop(run, launcher=(), watch=None):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_trial(search, train=stop)
    with (search.out / "journal.log").open("a") as journal:
        journal.write('{"op_code": 6, "wor')  # a process that was killed in a line
    assert missing(search) == 2
    for number in range(missing(search)):
        make_trial(search, number, train=here)
    return search


def test_a_grid_is_tried_completely_and_each_point_once(grid):
    study = grid.study()
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 3
    assert sorted(trial.params["learning_rate"] for trial in study.trials) == RATES
    assert missing(grid) == 0
    make_trial(grid, train=None)  # a task that finds nothing to do
    assert len(grid.study().trials) == 3


def test_the_command_line_names_every_objective():
    assert set(OBJECTIVES) == COLUMNS.keys()


def test_the_objective_is_the_dev_score_of_the_run(grid):
    for trial in grid.study().trials:
        results = read_json(grid.run(trial.params).directory / "results.json")
        assert trial.value == pytest.approx(results["training"]["dev"])
    assert best(grid.study()).value == max(trial.value for trial in grid.study().trials)


def test_the_winner_is_a_run_of_the_best_values_on_seeds_that_no_trial_had(grid):
    winner = winner_of(grid, [1, 2])
    assert winner.recipe.seeds == [1, 2]
    assert winner.recipe.learning_rate == best(grid.study()).params["learning_rate"]
    with pytest.raises(UserError, match="the trials have seed 42"):
        winner_of(grid, [1, 42])
    here(winner)
    path, text = write_report(grid, winner)
    written = read_json(path)
    assert written["results"]["seeds"] == [1, 2] and written["trials"] == {"COMPLETE": 3}
    assert "on fresh seeds" in text and "dev " in text
    assert len((grid.out / "trials.csv").read_text(encoding="utf-8").splitlines()) == 4
    assert is_trained(winner) and not is_trained(winner_of(grid, [1, 2, 3])), "a seed is added"


def test_another_search_in_the_same_directory_is_refused(grid):
    with pytest.raises(UserError, match="has a search with another objective, another seed, other transfer_rows"):
        replace(grid, objective="sts-sickr-dev", seed=1, transfer_rows=1000).study()
    assert len(replace(grid, trials=9).study().trials) == 3  # more trials are no other search


def test_a_search_with_other_sentences_or_another_content_of_a_file_is_refused(keys, tmp_path):
    search = search_in(tmp_path / "out", keys, objective="unlabelled", sentences=("a", "b"))
    search.study()
    with pytest.raises(UserError, match="has a search with other sentences"):
        replace(search, sentences=("a", "c")).study()
    recipe, file = tmp_path / "mine.yaml", Path(shutil.copy(keys["train_file"], tmp_path / "train.txt"))
    recipe.write_text("method: simcse\ntemperature: 0.1\n", encoding="utf-8")
    search = search_in(tmp_path / "file", {**keys, "train_file": str(file)}, recipe=str(recipe))
    search.study()
    recipe.write_text("method: simcse\ntemperature: 0.2\n", encoding="utf-8")
    file.write_text(file.read_text(encoding="utf-8") + "one sentence more .\n", encoding="utf-8")
    with pytest.raises(UserError, match="with another recipe's content, another train_file's content; choose another"):
        search.study()


def test_values_that_do_not_go_together_fail_with_a_reason_and_the_search_continues(keys, tmp_path):
    space = {
        "lr_scheduler": CategoricalDistribution(["constant"]),
        "warmup_ratio": CategoricalDistribution([0.0, 0.5]),
    }
    search = search_in(tmp_path, keys, space=space, trials=2)
    while missing(search):
        make_trial(search, train=here)
    states = {trial.params["warmup_ratio"]: trial for trial in search.study().trials}
    assert states[0.0].state == TrialState.COMPLETE and states[0.5].state == TrialState.FAIL
    assert "constant has no warm-up" in states[0.5].user_attrs["reason"]


@pytest.mark.parametrize("content", ["my own notes, no line end", "my own notes\nmore\n"])
def test_a_journal_of_something_else_is_kept(keys, tmp_path, content):
    (tmp_path / "journal.log").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"journal.log is not the journal of a search; choose another --out"):
        search_in(tmp_path, keys).study()
    assert (tmp_path / "journal.log").read_text(encoding="utf-8") == content


def test_the_trials_of_a_file_train_what_it_says(keys, tmp_path, monkeypatch):
    """Also if the file was written by a run, and names the recipe of the zoo that this run began with."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("recipe: simcse-bert-base-uncased\nmethod: simcse\ntemperature: 0.1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = search_in(tmp_path / "out", keys, recipe="recipe.yaml").run({"learning_rate": 1e-4}).command()
    assert command[0] == str(recipe)


def test_a_grid_is_completed_after_a_kill_between_two_values(keys, tmp_path):
    """The point of that trial is tried again, and no other point is left out."""
    space = {"learning_rate": CategoricalDistribution(RATES), "temperature": CategoricalDistribution([0.05, 0.1])}
    search = search_in(tmp_path, keys, space=space, trials=6, seed=1)
    study = search.study()
    trial = search.ask(study)  # its first value is in the journal, and its second is not
    lost = study._storage.get_trial(trial._trial_id)
    assert lost.params.keys() == space.keys()
    study.tell(trial, state=TrialState.FAIL)

    def tried():
        study = search.study()
        trial = search.ask(study)
        study.tell(trial, 1.0)
        return tuple(trial.params.values())

    assert len({tried() for _ in range(6)}) == 6


def test_a_grid_is_tried_completely_after_a_search_that_repeated_a_point(keys, tmp_path):
    """With fewer trials than points, Optuna may choose a point twice."""

    def fail(run, launcher=(), watch=None):
        raise UserError("enough")

    def points(search):
        return {tuple(trial.params.values()) for trial in search.study().trials}

    space = {"learning_rate": CategoricalDistribution(RATES), "temperature": CategoricalDistribution([0.05, 0.1])}
    search = search_in(tmp_path, keys, space=space, trials=5)
    while missing(search):
        make_trial(search, train=fail)
    tried = len(points(search))
    assert tried < 5 and missing(replace(search, trials=6)) == 6 - tried
    search = replace(search, trials=6)
    while missing(search):
        make_trial(search, train=fail)
    assert len(points(search)) == 6 and len(search.study().trials) == 5 + 6 - tried


def test_a_machine_waits_for_the_trials_of_others(keys, tmp_path):
    search = search_in(tmp_path, keys, trials=1)

    def beside(run, launcher=(), watch=None):
        assert missing(search) == 1 and not make_trial(search, train=None), "nothing to make, and not at the end"
        raise UserError("enough")

    assert make_trial(search, train=beside)
    assert missing(search) == 0


def test_a_trial_of_a_process_that_lives_is_left_to_it(keys, tmp_path):
    search = search_in(tmp_path, keys)
    rates = []

    def beside(run, launcher=(), watch=None):
        if not rates:
            rates.append(run.recipe.learning_rate)
            make_trial(search, train=beside)  # as another process would
        rates.append(run.recipe.learning_rate)
        raise UserError("enough")

    make_trial(search, train=beside)
    assert rates[0] == rates[2] != rates[1]
    states = [trial.state for trial in search.study().trials]
    assert states == [TrialState.FAIL] * 2 and begun(search, search.study()) == 2
    with pytest.raises(UserError, match="no trial was finished: enough"):
        best(search.study())


def test_a_trial_whose_dev_curve_is_below_the_median_is_pruned(keys, tmp_path):
    """The first score, before any update, is that of the base model."""
    search = search_in(tmp_path, keys, space={"learning_rate": FloatDistribution(0, 1)}, trials=7)

    def curve(scores):
        def train(run, launcher=(), watch=None):
            run.directory.mkdir(parents=True, exist_ok=True)
            for step, score in enumerate(scores):
                with (run.directory / "metrics.jsonl").open("a") as metrics:
                    metrics.write(json.dumps({"step": step, "loss": 1.0}) + "\n")
                    metrics.write(json.dumps({"step": step, "dev": score}) + "\n")
                watch()
            result = {"task": "dev", "metric": "spearman", "value": max(scores)}
            content = {"seed": 42, "results": [result], "training": {"seconds": 1, "peak_device_bytes": 1}}
            (run.directory / "best").mkdir(exist_ok=True)
            save_file({"backbone.weight": np.zeros((2, 2))}, run.directory / "best" / "model.safetensors")
            write_json(run.directory / "results.json", content)

        return train

    for last in (60, 61, 62, 63):
        make_trial(search, train=curve([50, last]))
    make_trial(search, train=curve([99, 61]))
    make_trial(search, train=curve([10, 64]))
    make_trial(replace(search, prune=False), train=curve([50, 55]))
    states = [trial.state for trial in search.study().trials]
    assert states == [TrialState.COMPLETE] * 4 + [TrialState.PRUNED, TrialState.COMPLETE, TrialState.COMPLETE]


@pytest.mark.slow
def test_a_search_measures_as_few_rows_of_transfer_tasks_as_its_profile_says(keys, tmp_path, real_data):
    data = str(real_data / "data" / "senteval")
    search = search_in(tmp_path, keys, objective="transfer-dev", trials=1, data=data, transfer_rows=1000)
    make_trial(search, train=here)
    (trial,) = search.study().trials
    measured = [row for row in read_results(search.run(trial.params)) if row["suite"] == "transfer"]
    assert len(measured) == 7 and trial.value == pytest.approx(np.mean([row["dev"] for row in measured]))
    assert max(rows for row in measured for rows in row["rows"].values()) == 1000


def test_a_search_without_labels_reads_no_pairs(keys, tmp_path, train_file):
    sentences = tuple(read_sentences(str(train_file), 20))
    assert len(sentences) == len(set(sentences)) == 20
    overrides = {**keys, **WITHOUT_LABELS}
    search = search_in(tmp_path, overrides, objective="unlabelled", sentences=sentences, trials=1)
    make_trial(search, train=here)
    (trial,) = search.study().trials
    assert trial.value < 0 and not trial.intermediate_values
    assert read_json(search.run(trial.params).directory / "results.json")["results"] == []
    winner = winner_of(search, [1])
    here(winner)
    assert write_report(search, winner)[1].endswith("on fresh seeds:\nno scores, without labels")


@pytest.fixture
def command(keys, tmp_path):
    """A search of two trials, as a command."""
    (tmp_path / "space.yaml").write_text("learning_rate: [0.001, 0.0]\n", encoding="utf-8")
    given = [f"{key}={'null' if value is None else value}" for key, value in {**keys, "max_steps": 20}.items()]
    words = ["simcse-bert-base-uncased", "--space", str(tmp_path / "space.yaml"), "--trials", "2"]
    words += ["--out", str(tmp_path / "out"), "--set", *given]
    return [sys.executable, "-m", "csezoo.training.cli", "tune", *words]


@pytest.mark.slow
def test_a_search_that_is_killed_continues_with_the_same_command(command, tmp_path):
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("out/runs/*/*/checkpoints/step-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    finished_in(tmp_path / "out", subprocess.run(command, check=True, capture_output=True, text=True))


@pytest.mark.slow
def test_a_search_gives_its_trials_to_ray(command, tmp_path):
    pytest.importorskip("ray", reason="RAY NOT TESTED: pip install ray")
    finished_in(
        tmp_path / "out", subprocess.run([*command, "--on", "ray"], check=True, capture_output=True, text=True)
    )


def finished_in(out, done):
    written = read_json(out / "search.json")
    assert written["trials"] == {"COMPLETE": 2} and written["winner"] in done.stdout
    assert written["results"]["seeds"] == [43, 44, 45]
    assert (out / written["winner"] / "best" / "model.safetensors").is_file()
