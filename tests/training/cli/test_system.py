"""What the system does to a command (no permission, a full disk, Ctrl-C, a plain terminal) is one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from csezoo.training.cli import main
from tests.conftest import tiny_config, tiny_tokenizer
from tests.interpreters import EACH_COMMAND, as_a_user, run_python
from tests.repositories import tiny_repository

ROOT = Path(__file__).parents[3]
# Root may read everything, unless it gives up these capabilities.
TRAIN = "train simcse-bert-base-uncased --eval_data none --report_to none --base_model".split()
TRAINED = [*TRAIN, "model", "--train_file", "texts.txt", "--output_dir"]


def answers(code, commands, *before):
    """The status and the last line of each command, all run by `code` in one new process."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    if before:
        done = subprocess.run([*before, sys.executable, "-c", code, words], capture_output=True, text=True, cwd=ROOT)
    else:
        done = run_python("-c", code, words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = zip(commands, json.loads(done.stdout.splitlines()[-1]), strict=True)
    return [[words, code, (err.strip().splitlines() or [""])[-1]] for words, (code, _, err, _) in found]


@pytest.fixture
def files(tmp_path):
    """A model, texts, pairs, results, a recipe, a run and a thesaurus that the commands of these tests read."""
    tiny_repository(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("The cat sits.\nThe dog runs.\n", encoding="utf-8")
    (tmp_path / "pairs.csv").write_text(
        "sentence1,sentence2,score\nthe cat,the dog,1\nthe big cat,a bird,2\n", encoding="utf-8"
    )
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
    user = as_a_user()
    closed = files / "closed"
    closed.mkdir()
    for name in ("model", "texts.txt", "pairs.csv", "results.json", "recipe.yaml", "words.txt"):
        source = files / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, closed / name)
    for path in [closed] if what == "directory" else [path for path in closed.rglob("*") if path.is_file()]:
        path.chmod(0)
    try:
        found = answers(EACH_COMMAND, reading(files, closed), *(user or ["env"]))
    finally:
        closed.chmod(0o755)
    assert [answer for answer in found if answer[1] != 2 or not answer[2].startswith("error: ")] == []


NO_SPACE = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
{EACH_COMMAND.replace("print(", "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2); print(")}"""


def test_a_full_disk_is_one_line_in_every_writer(files):
    """No file may grow beyond a few bytes: the system then says `File too large`, as it says that a disk is full."""
    model, texts = files / "model", files / "texts.txt"
    config, tokenizer = tiny_config("bert"), tiny_tokenizer("bert")
    config.vocab_size = len(tokenizer)
    for part in (config, tokenizer):
        part.save_pretrained(files / "base")
    torch.save(AutoModelForMaskedLM.from_config(config).state_dict(), files / "base" / "pytorch_model.bin")
    commands = [
        ["train", "quickstart", "--output_dir", files / "quickstart"],
        ["evaluate", model, "--pairs", files / "pairs.csv", "--out", files / "out.json"],
        ["encode", model, texts, "--to", files / "vectors"],
        ["neighbours", texts, "--to", files / "n.csv"],
        ["synonyms", texts, "--thesaurus", files / "words.txt", "--to", files / "s.csv"],
        ["export", model, "--onnx", "--to", files / "exported"],
        ["convert", files / "base", "--as", "base", "--to", files / "converted"],
        ["reproduce", "l2pcsr/table-1", "--rows", "USE", "--out", files / "reproduced"],
        ["cards", "--out", files / "cards"],
        ["benchmark", "encode", "--model", model, "--texts", texts, "--repeats", "1", "--out", files / "report.json"],
    ]
    found = answers(NO_SPACE, commands)
    assert [answer for answer in found if answer[1] != 2 or "File too large" not in answer[2]] == []


@pytest.mark.parametrize("command", ["recipes", "train --help"])
def test_an_output_without_space_is_one_line(command):
    with open("/dev/full", "w") as full:
        code = [sys.executable, "-m", "csezoo.training.cli", *command.split()]
        done = subprocess.run(code, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert (
        done.stderr == "error: [Errno 28] No space left on device; free disk space, and run the same command again\n"
    )


# Ctrl-C at the moment in which a command opens its input; a signal of the system, as the terminal sends it.
INTERRUPTED = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored
def interrupt(event, arguments):
    if event == "open" and str(arguments[0]).endswith(("texts.txt", "recipe.yaml", "config.json", "results.json")):
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
{EACH_COMMAND}"""


def test_ctrl_c_exits_with_130_and_says_how_to_go_on_in_every_command(files):
    with_data = ("compare", "glue", "models", "portrait")  # read data sets first, which are not here
    commands = [command for command in reading(files, files) if command[0] not in with_data]
    found = answers(INTERRUPTED, commands)
    assert [answer for answer in found if answer[1] != 130 or not answer[2].startswith("stopped by a signal: ")] == []
    assert found[0][2] == "stopped by a signal: run the same command again; it keeps what is already complete"


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_inside_a_finaliser_ends_the_command_too(number):
    """Python ignores an error in `__del__` and in the callback of a weak reference, and goes on."""
    code = f"""
import os, time
from csezoo.training.errors import exit_with_one_line
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored
class Closed:
    def __del__(self):
        os.kill(os.getpid(), {number})
        time.sleep(0)
with exit_with_one_line():
    Closed()
    time.sleep(30)
"""
    done = run_python("-c", code, cwd=ROOT)
    assert done.returncode == 128 + number
    assert done.stderr == "stopped by a signal: run the same command again; it keeps what is already complete\n"


def test_links_in_a_circle_are_one_line(files):
    (files / "loop").symlink_to("loop")
    commands = [
        ["cards", "--out", files / "loop"],
        ["encode", files / "loop", files / "texts.txt", "--to", files / "to"],
        ["encode", files / "model", files / "texts.txt", "--to", files / "loop"],
        ["audit", files / "loop"],
        [*TRAINED, files / "loop"],
    ]
    found = answers(EACH_COMMAND, commands)
    assert [answer for answer in found if answer[1] != 2 or not answer[2].startswith("error: ")] == []


def test_ctrl_c_is_ignored_where_the_process_was_started_so():
    code = """
import os, signal
from csezoo.training.errors import exit_with_one_line
signal.signal(signal.SIGINT, signal.SIG_IGN)
with exit_with_one_line():
    os.kill(os.getpid(), signal.SIGINT)
"""
    assert run_python("-c", code, cwd=ROOT).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_help_is_shown_in_every_encoding(encoding):
    code = [sys.executable, "-m", "csezoo.training.cli", "train", "diffcse-bert-base-uncased-sts", "--help"]
    variables = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(code, capture_output=True, cwd=ROOT, env=variables)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).endswith("All other keys: csezoo train --help\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_command_runs_with_a_closed_output(closed):
    shell = f"{sys.executable} -m csezoo.training.cli recipes {closed}"
    assert subprocess.run(shell, shell=True, stdout=subprocess.DEVNULL, cwd=ROOT).returncode == 0


def test_a_name_that_is_no_utf_8_is_shown_with_escapes(files):
    directory = os.fsencode(files) + b"/\xff"
    os.mkdir(directory)
    command = [sys.executable, "-m", "csezoo.training.cli", "neighbours", str(files / "texts.txt"), "--to"]
    done = subprocess.run([*command, directory + b"/n.csv"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\\udcff/n.csv\n") and os.path.isfile(directory + b"/n.csv")


@pytest.mark.parametrize("command", [TRAINED, ["export", "model", "--onnx", "--to"]], ids=["train", "export"])
def test_a_directory_that_weights_cannot_be_written_to_is_one_line(command, files, capsys, monkeypatch):
    """safetensors takes only names that are UTF-8."""
    monkeypatch.chdir(files)
    os.mkdir(b"\xff")
    with pytest.raises(SystemExit) as stop:
        main([*command, "\udcff/new"])
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 2 and line.endswith("is not UTF-8; rename the file, or correct the text"), line


def test_a_home_that_cannot_be_written_needs_no_cache(files):
    """What reads texts with `datasets` computes without its cache, and does not blame the file."""
    user = as_a_user()
    home = files / "home"
    home.mkdir(mode=0o555)
    variables = ["env", "-u", "HF_HOME", "-u", "HF_DATASETS_CACHE", "-u", "XDG_CACHE_HOME", f"HOME={home}"]
    command = ["synonyms", files / "texts.txt", "--thesaurus", files / "words.txt", "--to", files / "s.csv"]
    ((_, code, line),) = answers(EACH_COMMAND, [command], *user, *variables)
    assert (code, list(home.iterdir())) == (0, []), line
