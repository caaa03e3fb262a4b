"""In a benchmark both sides do the same work, and the report says what was measured on which machine."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from csezoo.modeling.serving.modeling_csezoo import CsezooModel
from csezoo.training.benchmarks.encoding import (
    benchmark_encoding,
    benchmark_sts,
    padded_encoder,
    race_encoders,
    score_as_senteval,
    senteval_order,
)
from csezoo.training.benchmarks.race import race
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.suites import evaluate_tasks
from csezoo.training.evaluation.tasks.sts import load_task
from csezoo.training.files import read_json
from tests.conftest import SENTENCES
from tests.repositories import tiny_repository
from tests.training.senteval_files import YEARS


def letters(texts):
    return np.array([[text.count(letter) for letter in 'abcdefghij0123456789 "'] for text in texts], np.float32)


def test_the_side_that_runs_first_alternates():
    done = []
    figures = race(lambda: done.append("ours"), lambda: done.append("usual"), repeats=3)
    assert done == ["ours", "usual", "usual", "ours", "ours", "usual"]
    assert figures["median"] == {name: sorted(times)[1] for name, times in figures["seconds"].items()}
    assert figures["ratio"] == figures["median"]["ours"] / figures["median"]["usual"]


@pytest.mark.parametrize("name", ["STS16", "STSBenchmark"])
def test_senteval_s_order_has_small_batches_and_the_same_score(senteval, name):
    task, batches = load_task(name, str(senteval)), []

    def encode(texts):
        batches.append(texts)
        return letters(texts)

    subsets = senteval_order(task, senteval / "downstream")
    score = score_as_senteval(encode, subsets)
    sizes = list(YEARS[name].values()) if name in YEARS else [1379]
    assert [len(rows) for rows in subsets] == sizes
    assert len(batches) == 2 * sum(-(-size // 128) for size in sizes) and max(map(len, batches)) == 128
    (result,) = evaluate_tasks(letters, [task])
    assert score == pytest.approx(result["value"], abs=1e-9)


def test_evaluation_scripts_compute_the_padding_of_a_batch(bases, tmp_path):
    """A published model knows no other way."""
    assert padded_encoder(str(bases["bert"]), "cls")[0].computes_padding
    assert type(padded_encoder(str(tiny_repository(tmp_path / "model")), None)[0]) is CsezooModel


def test_the_command_writes_a_report(senteval, bases, tmp_path, capsys):
    out = tmp_path / "report.json"
    model = ["--model", str(bases["roberta"]), "--pooling", "mean"]
    tasks = ["--tasks", "STS16", "STSBenchmark"]
    main(["benchmark", "sts", *model, *tasks, "--data", str(senteval), "--repeats", "1", "--out", str(out)])
    report = read_json(out)
    assert f"ratio {report['ratio']:.3f}" in capsys.readouterr().out
    assert report["tasks"] == tasks[1:] and report["difference"] < 0.01 and report["pooling"] == "mean"
    assert report["command"].startswith("csezoo benchmark sts --model ")
    assert {"device", "cpus", "threads", "versions"} <= report["machine"].keys()
    assert {name: len(seconds) for name, seconds in report["seconds"].items()} == {"ours": 1, "usual": 1}


@pytest.mark.parametrize(("splits", "pairs"), [("test", 1379), ("all", 1379 + 5749 + 1500)])
def test_senteval_s_side_can_encode_train_and_dev_too(splits, pairs, senteval, bases):
    model, data = str(bases["roberta"]), str(senteval)
    report = benchmark_sts(model, "mean", data, tasks=["STSBenchmark"], splits=splits, repeats=1)
    assert report["sentences"] == {"ours": len(load_task("STSBenchmark", data).sentences()), "usual": 2 * pairs}


@pytest.mark.parametrize("which", ["zoo", "plain"])
def test_encoding_is_timed_on_mixed_lengths_and_on_one_length(which, bases, tmp_path, capsys):
    out, file = tmp_path / "report.json", tmp_path / "texts.txt"
    file.write_text("".join(f"{' '.join(SENTENCES[: 1 + row % 5])}\n" for row in range(60)), encoding="utf-8")
    model = ["--model", str(tiny_repository(tmp_path / "model"))]
    model = model if which == "zoo" else ["--model", str(bases["bert"]), "--pooling", "mean"]
    main(["benchmark", "encode", *model, "--texts", str(file), "--repeats", "1", "--out", str(out)])
    report = read_json(out)
    mixed, one_length = report["sets"]["mixed"], report["sets"]["one length"]
    assert mixed["texts"] == 60 and one_length["texts"] == 12 and mixed["difference"] < 1e-5
    assert one_length["tokens"] % 12 == 0 and mixed["tokens"] == 5 * one_length["tokens"]
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in shown] == ["encode, mixed", "encode, one length"]
    assert f"ratio {mixed['ratio']:.3f} (of processor time {mixed['cpu_ratio']:.3f})" in shown[0]


def test_sides_that_cannot_be_compared_are_refused(bases, tmp_path):
    with pytest.raises(UserError, match="pooling: sentence-transformers has no first_last_mean"):
        benchmark_encoding(str(bases["bert"]), "first_last_mean")
    SentenceTransformer(str(bases["bert"])).save(str(tmp_path / "theirs"))
    with pytest.raises(UserError, match="so both sides would be the same"):
        benchmark_encoding(str(tmp_path / "theirs"), None)
    with pytest.raises(UserError, match="the vectors of sentence-transformers differ by"):
        race_encoders(letters, lambda texts: letters(texts) + 1, ["the cat"], repeats=1)
