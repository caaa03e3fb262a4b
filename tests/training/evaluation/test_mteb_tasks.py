"""MTEB's own tasks run on what csezoo loads and agree with our scores; the folder is that of its results repository.

mteb runs in processes of its own, because its imports warn.
"""

import sys

import pytest

from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.mteb_tasks import revision_of, write_results
from csezoo.training.evaluation.tasks.names import RELEASED_PAIRS
from csezoo.training.files import read_json
from tests.conftest import sentence_transformer, write_pairs
from tests.interpreters import run_python
from tests.repositories import tiny_repository

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="MTEB NOT TESTED: it needs Python 3.11")
NAME = ("--name", "zoo/tiny")
# Ours, on the pairs that MTEB reads: as `csezoo evaluate --data hub` reads them, but from the file.
OURS = """
import csv, json, sys
import csezoo.training.evaluation.tasks.sts as sts
from csezoo.training.cli.parser import main

def from_file(name, *_):
    with open("data/mteb/sts12-sts/test.csv", newline="", encoding="utf-8") as file:
        rows = [(row["sentence1"], row["sentence2"], float(row["score"])) for row in csv.DictReader(file)]
    return sts.pair_task(name, rows, "mteb/sts12-sts", "main")

sts.from_hub = from_file
sts.RELEASED_PAIRS["STS12"] = 96
import csezoo.training.evaluation.suites as suites
suites.LOADERS["sts"] = lambda data: [sts.load_task("STS12", data)]
main(["evaluate", "model", "--out", "ours.json", "--format", "mteb", "--to", "ours", "--name", "zoo/tiny"])
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A directory where a tiny model was scored by MTEB (in `theirs`) and by us (in `ours`) on the same file."""
    directory = tmp_path_factory.mktemp("mteb")
    tiny_repository(directory / "model")
    (directory / "data" / "mteb" / "sts12-sts").mkdir(parents=True)
    write_pairs(directory / "data" / "mteb" / "sts12-sts" / "test.csv")
    command = ["-W", "ignore", "-m", "csezoo.training.cli", "mteb", "model", "--tasks", "STS12", "--to", "theirs"]
    for arguments in ([*command, "--data", "data", *NAME], ["-W", "ignore", "-c", OURS]):
        done = run_python(*arguments, cwd=directory, HF_HOME=str(directory / "hf"))
        assert done.returncode == 0, done.stderr
    return directory


ROLES = """
import numpy as np
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.mteb_tasks import model_meta

theirs = SentenceTransformer("model")
encode, receipt = load_encoder("model")
ours = model_meta("model", receipt, encode, None).load_model()
batches = [{"text": ["a cat"]}, {"text": ["the old dog"]}]
texts = ["a cat", "the old dog"]
for role, expected in ((PromptType.query, theirs.encode_query), (PromptType.document, theirs.encode_document)):
    np.testing.assert_allclose(ours.encode(batches, prompt_type=role), expected(texts), atol=1e-6)
    moved = np.abs(ours.encode(batches) - expected(texts)).max()
    assert moved > 1e-3, (role, moved)
assert ours.mteb_model_meta.similarity_fn_name.value == "manhattan", ours.mteb_model_meta
first, second = theirs.encode(texts), theirs.encode(texts[::-1])
for name in ("similarity", "similarity_pairwise"):
    np.testing.assert_allclose(getattr(ours, name)(first, second), getattr(theirs, name)(first, second), rtol=1e-5)
"""


def test_mteb_s_queries_and_documents_have_the_prompts_of_the_model(bases, tmp_path):
    model = sentence_transformer(bases["bert"])
    model.prompts, model.similarity_fn_name = {"query": "the cat: ", "document": "a river: "}, "manhattan"
    model.save(str(tmp_path / "model"))
    done = run_python("-W", "ignore", "-c", ROLES, cwd=tmp_path, HF_HOME=str(tmp_path / "hf"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "kind, pooling, dtype, ending",
    [
        ("csezoo", "cls", "float32", ""),
        ("csezoo", "cls", "bfloat16", "-bfloat16"),
        ("transformers", "mean", "float32", "-mean"),
    ],
)
def test_what_changes_the_vectors_is_in_the_revision(kind, pooling, dtype, ending):
    """MTEB does not run a task again for the same revision."""
    receipt = {"model_revision": None, "model_sha256": "a" * 64, "kind": kind, "pooling": pooling, "dtype": dtype}
    assert revision_of(receipt) == f"sha256-{'a' * 16}{ending}"


def test_a_bag_of_words_has_its_name_as_revision():
    receipt = load_encoder("bag-of-words")[1]
    assert revision_of(receipt) == "bag-of-words"


def score(folder) -> dict:
    (file,) = folder.glob("results/zoo__tiny/*/STS12.json")
    return read_json(file)


@pytest.mark.slow
def test_our_score_is_that_of_mteb(folders):
    ours, theirs = (score(folders / name)["scores"]["test"][0]["main_score"] for name in ("ours", "theirs"))
    assert ours == pytest.approx(theirs, abs=1e-6) and 0 < abs(ours) < 1


def test_the_folder_is_that_of_the_results_repository(folders):
    revisions = set()
    for name in ("ours", "theirs"):
        (meta,) = (folders / name).glob("results/zoo__tiny/*/model_meta.json")
        described = read_json(meta)
        assert (described["name"], described["embed_dim"], described["open_weights"]) == ("zoo/tiny", 32, True)
        assert described["revision"] == meta.parent.name and meta.parent.name.startswith("sha256-")
        revisions.add(meta.parent.name)
        assert score(folders / name)["dataset_revision"] == "a0d554a64d88156834ff5ae9920b964011b16384"
    assert len(revisions) == 1


def test_a_file_of_pairs_with_the_name_of_a_task_is_not_that_task():
    mine = {"suite": "pairs", "task": "STS12", "value": 60.0}
    with pytest.raises(UserError, match="format: MTEB has none of these tasks with the same pairs; it has STS12"):
        write_results([mine], "folder", "model", {}, lambda texts: texts, "zoo/tiny")


@pytest.mark.slow
def test_what_mteb_does_not_have_is_refused(folders, tmp_path, monkeypatch, capsys):
    def refusal(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main([*arguments])
        assert stop.value.code == 2
        return capsys.readouterr().err.strip()

    monkeypatch.chdir(folders)
    assert "belong together" in refusal("evaluate", "model", "--format", "mteb")
    command = "-W ignore -m csezoo.training.cli mteb model --tasks STS13 --to x --data data"
    done = run_python(*command.split(), cwd=folders)
    assert done.returncode == 2 and "sts13-sts does not exist; MTEB's task STS13 reads it" in done.stderr
    assert RELEASED_PAIRS["STS12"] == 3108  # what the process above changed, it changed for itself
