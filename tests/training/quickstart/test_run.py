"""The quickstart from world to report, on a small world and with few updates."""

import logging
import re
import subprocess
import sys

import numpy as np
import pytest
from accelerate.state import AcceleratorState

from csezoo.training.errors import UserError
from csezoo.training.evaluation.sentence_vectors import SentenceVectors
from csezoo.training.evaluation.tasks.neighbours import nearest_sentences, side_by_side
from csezoo.training.evaluation.tasks.sts import PairTask
from csezoo.training.quickstart.report import neighbour_lines, score_lines
from csezoo.training.quickstart.run import quickstart
from csezoo.training.recipes import load_recipe
from tests.interpreters import run_two

SIZES = {"sentences": 200, "pairs": 80, "triplets": 150}
FAST = {"max_steps": "2", "report_to": "none"}
RUN = f"""
from csezoo.training.quickstart.run import quickstart
quickstart("quickstart", {FAST | {"nli_steps": "1", "output_dir": "run"}}, **{SIZES})
"""
# The first process takes longer to leave a group of processes.
LATE = """
import os, time
from accelerate.state import PartialState
leave = PartialState.destroy_process_group
def late(state, group=None):
    time.sleep(3 if os.environ["RANK"] == "0" else 0)
    leave(state, group)
PartialState.destroy_process_group = late
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The quickstart in two processes, each with a hash seed of its own: directory, output, log."""
    runs = []
    for _ in range(2):
        directory = tmp_path_factory.mktemp("quickstart")
        done = subprocess.run([sys.executable, "-c", RUN], cwd=directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown = re.sub(r"^\[\d{4}-.*\n", "", done.stdout, flags=re.MULTILINE)  # DeepSpeed prints the time
        runs.append((directory / "run", shown, done.stderr))
    return runs


@pytest.mark.slow
def test_the_same_seed_makes_the_same_bytes_in_every_process(twice):
    (first, shown, _), (second, shown_again, _) = twice
    assert shown == shown_again
    names = [path.relative_to(first) for path in first.rglob("*") if path.suffix in (".txt", ".csv", ".safetensors")]
    names += [path.relative_to(first) for path in first.rglob("tokenizer.json")]
    assert {"world/train.txt", "base/tokenizer.json", "best/model.safetensors", "simcse/best/model.safetensors"} <= {
        name.as_posix() for name in names
    }
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.slow
def test_the_report_has_every_row_and_says_what_was_learnt_from_what(twice):
    run, shown, _ = twice[0]
    rows = [line.split("  ")[0] for line in shown.splitlines() if re.search(r"\d\.\d\d +[01]\.\d\d$", line)]
    assert rows == ["untrained, cls", "untrained, mean", "tf-idf", "simcse, no labels", "diffaug, labels"]
    assert "simcse, no labels: 2 updates on 200 sentences" in shown
    assert "diffaug, labels: 3 updates on 150 NLI triplets" in shown


@pytest.mark.slow
def test_the_report_ends_with_lines_that_load_the_model(twice):
    run, shown, _ = twice[0]
    *_, picture, repository, first, second, third = shown.rstrip().splitlines()
    assert picture.endswith(": run/before_and_after.png") and repository.endswith(": run/best")
    assert (run / "before_and_after.png").read_bytes().startswith(b"\x89PNG")
    assert first.strip() == "from sentence_transformers import SentenceTransformer"
    assert second.strip() == 'model = SentenceTransformer("run/best")' and "encode([" in third


def test_without_labels_only_the_sentences_are_used(tmp_path, capsys):
    output = tmp_path / "run"
    quickstart("quickstart-simcse", FAST | {"output_dir": str(output)}, **SIZES)
    AcceleratorState._reset_state(reset_partial_state=True)
    shown = capsys.readouterr().out
    assert "labels: 2 updates on 200 sentences" in shown and "diffaug" not in shown
    assert not (output / "simcse").exists()
    assert load_recipe(str(output / "recipe.yaml")).nli_file is None
    (output / "world" / "made_from.json").unlink()
    with pytest.raises(UserError, match="was not made by the quickstart"):
        quickstart("quickstart-simcse", FAST | {"output_dir": str(output)}, **SIZES)


def test_the_run_on_an_old_world_is_removed_before_a_new_world_is_made(tmp_path, capsys):
    """A kill in between must not leave it beside the new one."""
    output, seen = tmp_path / "run", []

    class Seen(logging.Handler):
        def emit(self, record):
            if record.getMessage().startswith("making "):
                seen.append((output / "results.json").exists())

    for sentences, overwrite in ((200, "false"), (220, "true")):
        changes = FAST | {"output_dir": str(output), "overwrite": overwrite}
        logging.getLogger("csezoo").addHandler(handler := Seen())
        quickstart("quickstart-simcse", changes, **{**SIZES, "sentences": sentences})
        logging.getLogger("csezoo").removeHandler(handler)
        AcceleratorState._reset_state(reset_partial_state=True)
        assert f"2 updates on {sentences} sentences" in capsys.readouterr().out
    assert seen == [False] * 4
    with pytest.raises(UserError, match="was made by other code; choose another --output_dir"):
        quickstart("quickstart-simcse", FAST | {"output_dir": str(output)}, **SIZES)
    assert (output / "results.json").is_file(), "a finished run is not deleted by an upgrade"


def test_a_mistake_beside_overwrite_does_not_cost_the_old_run(tmp_path):
    for name in ("recipe.yaml", "results.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="train_file: nowhere.txt does not exist"):
        quickstart(
            "quickstart", {"output_dir": str(tmp_path), "train_file": "nowhere.txt", "overwrite": True}, **SIZES
        )
    assert (tmp_path / "results.json").is_file()


def test_a_run_beside_it_is_not_deleted(tmp_path):
    run = tmp_path / "simcse" / "results.json"
    run.parent.mkdir()
    run.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="simcse exists and was not made by the quickstart; give another --output_dir"):
        quickstart("quickstart", FAST | {"output_dir": str(tmp_path)}, **SIZES)
    assert run.is_file() and not (tmp_path / "recipe.yaml").exists()


@pytest.mark.slow
def test_two_processes_train_both_models(tmp_path):
    """Also if one of them leaves a run seconds after the other."""
    shown, _ = run_two("-c", LATE + RUN.replace("'run'", repr(str(tmp_path / "run"))))
    assert shown.count("diffaug, labels: 3 updates") == 1, "one process reports"


def test_recall_neighbours_and_queries_are_those_of_the_vectors():
    vectors = {"a": (1, 0), "b": (0.9, 0.1), "c": (0, 1), "d": (0.1, 0.9)} | dict.fromkeys("ejkl", (-1, 0))
    vectors |= dict.fromkeys("fghi", (0, -1))
    pairs = [("a", "b"), ("c", "d"), ("e", "f"), ("j", "g"), ("k", "h"), ("l", "i")]
    task = PairTask("toy", pairs, [5.0, 5.0, 0.0, 0.0, 0.0, 0.0], "here")
    table = SentenceVectors(lambda texts: np.array([vectors[text] for text in texts], float))
    table.add(task.sentences())
    assert score_lines({"toy": table}, task)[1].split() == ["toy", "100.00", "1.00"]
    nearest = side_by_side(nearest_sentences(task, table), nearest_sentences(task, lambda texts: -table(texts)))
    assert [found["query"] for found in nearest] == ["a", "c"]
    assert neighbour_lines(nearest)[:2] == ["  a", f"    {'0.99 b':<58}0.99 b"]
