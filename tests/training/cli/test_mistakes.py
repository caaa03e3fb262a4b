"""A user's mistake on the command line ends with one line, exit code 2, and before any work."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from transformers import AutoTokenizer, BartConfig, BartModel

from csezoo.training.cli.parser import main


@pytest.fixture(scope="module")
def broken(bases, tmp_path_factory):
    """A directory of models and files that each have one thing wrong, named after it."""
    tmp_path = tmp_path_factory.mktemp("broken")
    sizes = dict.fromkeys(["d_model", "encoder_ffn_dim", "decoder_ffn_dim"], 8)
    parts = dict.fromkeys(
        ["encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"], 1
    )
    BartModel(BartConfig(vocab_size=99, **sizes, **parts)).save_pretrained(tmp_path / "bart")
    AutoTokenizer.from_pretrained(bases["bert"]).save_pretrained(tmp_path / "bart")
    for name in ("listed", "misfit"):
        shutil.copytree(bases["bert"], tmp_path / name)
    (tmp_path / "listed" / "config.json").write_text("[]", encoding="utf-8")
    (tmp_path / "listed" / "fingerprint.json").write_text("[]", encoding="utf-8")
    config = json.loads((tmp_path / "misfit" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "misfit" / "config.json").write_text(json.dumps({**config, "intermediate_size": 7}), encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").touch()
    (tmp_path / "picture.png").mkdir()
    (tmp_path / "file").touch()
    return tmp_path


EVALUATE = "--suite sts-dev --pooling"
TRAIN = "simcse-bert-base-uncased --eval_data none --report_to none --base_model"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train", "give a recipe"),
        (f"train simcse-bert-base-uncased --base_model {'x' * 300}", "could not be loaded"),
        (f"evaluate {'x' * 300}", "is neither a directory with a model nor"),
        (f"verify {'x' * 300}", "is neither a directory nor a valid name on the Hub"),
        (f"train {TRAIN} BASE --train_file {{0}}/file --max_length 1", "max_length: 1 must be at least 3"),
        (f"train {TRAIN} {{0}}/bart --train_file {{0}}/file", "(bart) is not an encoder of the BERT family"),
        (f"train {TRAIN} BASE --output_dir {{0}}/run", "recipe.yaml is not a recipe"),
        (
            f"evaluate BASE {EVALUATE} nonsense",
            "'nonsense' must be one of cls, mean, max, first_last_mean, last2_mean",
        ),
        (f"evaluate BASE {EVALUATE} prompt", "'prompt' must be one of cls, mean"),
        (f"evaluate {{0}}/bart {EVALUATE} mean", "(bart) is not an encoder of the BERT family"),
        (f"evaluate {{0}}/listed {EVALUATE} mean", "config.json: expected a JSON object, got list"),
        (f"evaluate {{0}}/misfit {EVALUATE} mean", "could not be loaded"),
        (f"evaluate BASE {EVALUATE} mean --out {{0}}", "is a directory; give a file"),
        (f"evaluate BASE {EVALUATE} mean --out {{0}}/file/x.json", "file is not a directory"),
        ("verify {0}/listed", "expected a JSON object, got a list"),
        ("portrait BASE --of pairs --pooling cls --out {0}/picture.png", "is a directory; give a file"),
        ("glue BASE --tasks RTE --seeds 1 -1", "seeds: -1 must be from 0 to below 2**32"),
        ("glue BASE --tasks RTE --epochs nan", "epochs: nan must be above 0"),
        ("glue BASE --tasks RTE --max_length 2", "max_length: 2 leaves no room for two texts"),
        ("benchmark soak quickstart --picture {0}/x.txt", "x.txt is not a PNG file"),
        ("benchmark soak quickstart --every -1", "every: -1.0 must be above 0"),
        ("benchmark scaling quickstart --repeats 0", "repeats: 0 must be at least 1"),
        ("benchmark training quickstart --out {0}", "is a directory; give a file"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(command, message, bases, broken, capsys):
    words = [str(bases["bert"]) if word == "BASE" else word.format(broken) for word in command.split()]
    with pytest.raises(SystemExit) as stop:
        main(words)
    *before, line = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and (not before or words[0] == "train")  # train logs its progress first
    assert line.startswith("error: ") and message in line


def test_a_directory_that_cannot_be_written_is_refused_before_the_work(bases, capsys):
    if not os.path.isdir("/proc"):
        pytest.skip("needs a directory that nobody can write to")
    with pytest.raises(SystemExit):
        main(["evaluate", str(bases["bert"]), "--pooling", "cls", "--out", "/proc/result.json"])
    assert capsys.readouterr().err.startswith("error: out: /proc/result.json cannot be written")


def test_a_reader_may_stop_in_the_middle_of_the_help_of_training():
    reader, writer = os.pipe()
    os.close(reader)
    code = [sys.executable, "-m", "csezoo.training.cli", "train", "--help"]
    done = subprocess.run(code, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
