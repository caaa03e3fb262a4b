"""What the system does to a command (no permission, a full disk, Ctrl-C, a plain terminal) is one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import run_python
from tests.repositories import tiny_repository

ROOT = Path(__file__).parents[3]
# Root may read everything, unless it gives up these capabilities.
AS_A_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
TRAIN = "train simcse-bert-base-uncased --eval_data none --report_to none --base_model".split()
# Runs commands in one process, which imports the libraries once. Each has the status, or the type of a defect.
EACH = """
import contextlib, io, json, sys
from csezoo.training.cli import main
answers = []
for words in json.loads(sys.argv[1]):
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(words)
            code = 0
        except SystemExit as stop:
            code = stop.code
        except BaseException as defect:
            code = repr(defect)
    answers.append([words, code, (error.getvalue().strip().splitlines() or [""])[-1]])
print(json.dumps(answers))
"""


def answers(code, commands, *before):
    """The status and the last line of each command, all run by `code` in one new process."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    if before:
        done = subprocess.run([*before, sys.executable, "-c", code, words], capture_output=True, text=True, cwd=ROOT)
    else:
        done = run_python("-c", code, words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def files(tmp_path):
    """A model, texts, pairs, results, a recipe, a run and a thesaurus that the commands of these tests read."""
    tiny_repository(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("The cat sits.\nThe dog runs.\n", encoding="utf-8")
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,score\na,b,1\nc,d,2\n", encoding="utf-8")
    (tmp_path / "results.json").write_text('{"model": "x", "results": []}', encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("method: simcse\n", encoding="utf-8")
    (tmp_path / "words.txt").write_text("cat, feline\n", encoding="utf-8")
    return tmp_path


def reading(files, closed):
    """Commands, each of which reads a file or a directory that is `closed`."""
    model, texts, to = files / "model", files / "texts.txt", files / "to"
    return [
        ["train", closed / "recipe.yaml"],
        [*TRAIN, model, "--train_file", closed / "texts.txt", "--output_dir", files / "run"],
        [*TRAIN, model, "--train_file", texts, "--dev_file", closed / "pairs.csv"],
        [*TRAIN, closed / "model", "--train_file", texts, "--output_dir", files / "run"],
        ["evaluate", closed / "model", "--pairs", files / "pairs.csv"],
        ["evaluate", model, "--pairs", closed / "pairs.csv"],
        ["evaluate", model, "--pairs", files / "pairs.csv", "--out", closed / "results.json"],
        ["compare", model, closed / "model", "--data", closed],
        ["encode", closed / "model", texts, "--to", to],
        ["encode", model, closed / "texts.txt", "--to", to],
        ["neighbours", closed / "texts.txt", "--to", files / "n.csv"],
        ["synonyms", texts, "--thesaurus", closed / "words.txt", "--to", files / "s.csv"],
        ["synonyms", closed / "texts.txt", "--thesaurus", files / "words.txt", "--to", files / "s.csv"],
        ["backtranslate", texts, "--forward", closed / "model", "--back", model, "--to", files / "b.csv"],
        ["table", closed / "results.json"],
        ["models", "--cards", closed],
        ["publish", closed / "model", "--to", "a/b"],
        ["export", closed / "model", "--onnx", "--to", to],
        ["convert", closed / "model", "--as", "simcse-unsup", "--to", to],
        ["verify", closed / "model"],
        ["audit", closed / "model"],
        ["weakened", closed, "--sentences", "a", "b", "--out", files / "w.png"],
        ["portrait", closed / "model", "--of", "layers", "--data", closed, "--out", files / "p.png"],
        ["glue", closed / "model", "--tasks", "MRPC", "--data", closed],
        ["benchmark", "training", closed / "recipe.yaml"],
        ["reproduce", "diffcse/table-3", "--profile", closed / "recipe.yaml", "--out", closed],
    ]


@pytest.mark.parametrize("what", ["directory", "files"])
def test_what_may_not_be_read_is_one_line_in_every_command(what, files):
    as_a_user = AS_A_USER if os.geteuid() == 0 else []
    if as_a_user and shutil.which("setpriv") is None:
        pytest.skip("UNREADABLE FILES NOT TESTED: root reads everything, and there is no setpriv")
    closed = files / "closed"
    closed.mkdir()
    for name in ("model", "texts.txt", "pairs.csv", "results.json", "recipe.yaml", "words.txt"):
        source = files / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, closed / name)
    for path in [closed] if what == "directory" else [path for path in closed.rglob("*") if path.is_file()]:
        path.chmod(0)
    try:
        found = answers(EACH, reading(files, closed), *(as_a_user or ["env"]))
    finally:
        closed.chmod(0o755)
    assert [answer for answer in found if answer[1] != 2 or not answer[2].startswith("error: ")] == []
