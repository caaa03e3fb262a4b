"""Results files: finished results are kept and not repeated; results of another model are refused."""

import json
import shutil
import threading

import numpy as np
import pytest

from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.results import ResultsFile
from csezoo.training.evaluation.suites import evaluate
from csezoo.training.evaluation.tasks.names import DEV_TASK
from csezoo.training.evaluation.tasks.sts import load_task
from csezoo.training.files import read_json, write_json
from tests.conftest import SENTENCES
from tests.interpreters import CONTEXT
from tests.training.senteval_files import write

RECEIPT = {"pooling": "letters", "dtype": "float32", "model_sha256": "0" * 64, "model_revision": None}


class Letters:
    """A toy encoder that counts letters. It records its calls and can be interrupted after the first n of them."""

    def __init__(self, interrupted_after: int | None = None):
        self.calls, self.interrupted_after = [], interrupted_after

    def __call__(self, texts):
        if len(self.calls) == self.interrupted_after:
            raise KeyboardInterrupt
        self.calls.append(texts)
        return np.array([[text.count(letter) for letter in "abcdefg"] for text in texts], np.float32)


@pytest.fixture
def data(tmp_path):
    """STS-B dev and test with the released row counts and no sentence in common."""
    generator = np.random.default_rng(0)
    for part, rows in (("dev", 1500), ("test", 1379)):
        pairs = [[f"{part} {sentence}" for sentence in generator.choice(SENTENCES, 2)] for _ in range(rows)]
        lines = ["\t".join(["g", "f", "y", str(n), str(n % 6), *pair]) for n, pair in enumerate(pairs)]
        write(tmp_path / "data" / "STS" / "STSBenchmark" / f"sts-{part}.csv", lines)
    return tmp_path / "data"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "result.json"


@pytest.fixture
def run(data, out):
    """A function that evaluates `Letters` on suites and adds the results to one file."""

    def evaluate_into(*suites, encode=None, **options):
        file = ResultsFile(out, "letters", RECEIPT["model_sha256"])
        options = {"receipt": RECEIPT, **options}
        return evaluate(encode or Letters(), list(suites), str(data), file=file, **options)["results"]

    return evaluate_into


def stored(out) -> list[dict]:
    return read_json(out)["results"]


def test_a_second_run_reads_its_results_from_the_file(run, out):
    suites, queries = ("sts-dev", "geometry", "retrieval"), ["abc", "gg"]
    first = run(*suites, queries=queries)
    content = out.read_bytes()
    assert json.loads(content) == {"model": "letters", "results": first}
    again = Letters()
    assert run(*suites, queries=queries, encode=again) == first
    assert again.calls == [] and out.read_bytes() == content


def test_only_new_tasks_are_encoded_and_added(run, out, data):
    (dev,) = run("sts-dev")
    encode = Letters()
    results = run("sts-dev", "retrieval", "geometry", encode=encode, queries=["not in it"])
    assert stored(out) == results and results[0] == dev
    encoded = [sentence for texts in encode.calls for sentence in texts]
    assert set(encoded) == load_task("STSBenchmark", str(data)).sentences() | {"not in it"}
    assert len(encoded) == len(set(encoded)), "each sentence once"


def test_an_interrupted_run_keeps_its_finished_tasks_and_continues(run, out):
    complete = run("sts-dev", "geometry", "retrieval")
    out.unlink()
    with pytest.raises(KeyboardInterrupt):
        run("sts-dev", "geometry", "retrieval", encode=Letters(interrupted_after=1))
    assert stored(out) == complete[:1]
    assert run("sts-dev", "geometry", "retrieval") == complete == stored(out)


@pytest.mark.parametrize(
    "change", [{"pooling": "mean"}, {"dtype": "bfloat16"}, {"device": "another"}, {"batch_size": 1}]
)
def test_another_receipt_is_another_result(run, out, change):
    first = run("sts-dev")
    encode = Letters()
    second = run("sts-dev", encode=encode, receipt={**RECEIPT, **change})
    assert len(encode.calls) == 1 and stored(out) == first + second
    assert second[0] == {**first[0], **change}


def test_changed_data_is_another_result(run, out, data):
    run("sts-dev")
    file = data / "STS" / "STSBenchmark" / "sts-dev.csv"
    file.write_text(file.read_text(encoding="utf-8").replace("\t5\t", "\t4\t"), encoding="utf-8")
    run("sts-dev")
    first, second = stored(out)
    assert first["sha256"] != second["sha256"] and first["task"] == second["task"] == DEV_TASK


def test_the_hub_commit_of_the_same_files_does_not_matter(run, out):
    first = run("sts-dev")
    assert (
        run("sts-dev", encode=Letters(interrupted_after=0), receipt={**RECEIPT, "model_revision": "a" * 40}) == first
    )


def test_other_keys_of_the_file_are_kept(run, out):
    write_json(out, {"model": "mine", "note": "kept", "results": []})
    results = run("sts-dev")
    assert read_json(out) == {"model": "mine", "note": "kept", "results": results}


def test_a_reader_always_finds_a_complete_file(out):
    def add():
        file = ResultsFile(out, "letters", "0")
        for n in range(50):
            file.add([{"task": str(n), "value": 1.0, "model_sha256": "0", "filler": "x" * 1000}])

    writer = threading.Thread(target=add)
    writer.start()
    seen = [0]
    while writer.is_alive():
        if out.exists():
            seen.append(len(stored(out)))
    writer.join()
    assert seen == sorted(seen) and len(stored(out)) == 50
    visible = [path for path in out.parent.iterdir() if not path.name.startswith(".")]
    assert visible == [out] and not list(out.parent.glob(".*.partial")), "no partial file is left"


def _add_forty(out, name, barrier) -> None:
    file = ResultsFile(out, "letters", "0")
    barrier.wait(60)
    for number in range(40):
        file.add([{"task": f"{name} {number}", "value": 1.0, "model_sha256": "0"}])


def test_what_a_killed_process_left_beside_the_file_is_deleted_by_the_next_one(out):
    left, other = (out.with_name(name) for name in (f".{out.name}.123.partial", f".another-{out.name}.123.partial"))
    for path in (left, other):
        path.write_text("{", encoding="utf-8")
    ResultsFile(out, "model", "0").add([{"task": "STS12", "value": 1.0}])
    assert not left.exists() and other.exists()


def test_two_processes_add_to_one_file_and_no_result_is_lost(out):
    barrier = CONTEXT.Barrier(2)
    processes = [CONTEXT.Process(target=_add_forty, args=(out, name, barrier)) for name in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0]
    expected = {f"{name} {number}" for name in ("one", "two") for number in range(40)}
    assert len(stored(out)) == 80 and {result["task"] for result in stored(out)} == expected


def test_the_same_run_three_times_at_once_has_each_result_once(run, out):
    """Each of them finds no results before its work. All return those that are in the file."""
    together, returned = threading.Barrier(3), []

    def together_with_others(texts):
        together.wait(60)
        return Letters()(texts)

    def evaluate_one():
        returned.append(run("sts-dev", encode=together_with_others))

    threads = [threading.Thread(target=evaluate_one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert returned == [stored(out)] * 3 and len(stored(out)) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'{"results": []}',
        b'{"model": "m"}',
        b'{"model": "m", "results": [1]}',
        b'{"model": "m", "results": "" }',
        b"\xff\xfe",
    ],
)
def test_any_other_file_is_refused_and_left_unchanged(out, content):
    out.write_bytes(content)
    with pytest.raises(UserError, match="is not a results file .*; choose another --out") as error:
        ResultsFile(out, "letters", "0")
    assert "\n" not in str(error.value) and out.read_bytes() == content


def test_a_file_that_cannot_be_written_is_a_one_line_error(tmp_path):
    with pytest.raises(UserError, match=r"out: .*/none/result.json cannot be written \(.*No such file"):
        ResultsFile(tmp_path / "none" / "result.json", "letters", "0").add([])


def test_results_of_another_model_are_refused(run, out):
    run("sts-dev")
    with pytest.raises(
        UserError, match=r"result.json contains results of another model \(letters\); choose another --out"
    ):
        ResultsFile(out, "other", "1" * 64)


def test_the_command_identifies_a_model_by_its_files(bases, data, out, tmp_path, capsys):
    model = shutil.copytree(bases["bert"], tmp_path / "model")
    options = ["--pooling", "cls", "--suite", "sts-dev", "--data", str(data), "--out", str(out)]
    main(["evaluate", str(model), *options])
    (first,) = stored(out)
    assert first["model_revision"] is None and len(first["model_sha256"]) == 64
    moved = model.rename(tmp_path / "moved")
    (moved / "README.md").write_text("A card does not change any vector.", encoding="utf-8")
    main(["evaluate", str(moved), *options])
    assert stored(out) == [first]
    weights = moved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(moved), *options])
    assert stop.value.code == 2 and stored(out) == [first]
    assert f"error: out: {out} contains results of another model ({model})" in capsys.readouterr().err
