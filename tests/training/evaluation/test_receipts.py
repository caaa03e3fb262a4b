"""Every result carries a complete receipt and can be reproduced exactly."""

import json
import os
import subprocess
import sys

import pytest

from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.suites import evaluate_tasks, full_receipt
from csezoo.training.evaluation.tasks.geometry import GeometryTask
from csezoo.training.evaluation.tasks.retrieval import NeighboursTask, RetrievalTask
from csezoo.training.evaluation.tasks.sts import load_pairs_file
from csezoo.training.evaluation.tasks.transfer import TransferTask
from tests.interpreters import ROOT

EVALUATE = """
import json, sys
from tests.training.evaluation.test_receipts import evaluated
print(json.dumps(evaluated(*sys.argv[1:])))
"""


def evaluated(model, dev_file) -> list[dict]:
    """Results of every kind of task."""
    pairs = load_pairs_file(dev_file)
    sentences = sorted(pairs.sentences())
    examples = [((sentence,), int("cat" in sentence or "dog" in sentence)) for sentence in sentences]
    tasks = [pairs, GeometryTask(pairs, 2.0), RetrievalTask(pairs, max(pairs.scores))]
    tasks += [NeighboursTask(pairs, sentences[0]), TransferTask("folds", {"all": examples}, "here", "fast")]
    tasks += [TransferTask("parts", {"train": examples[::2], "test": examples[1::2]}, "here", "fast")]
    encode, receipt = load_encoder(model, pooling="mean")
    return evaluate_tasks(encode, tasks, receipt=receipt)


@pytest.mark.slow
def test_two_processes_return_identical_results(bases, dev_file):
    """With different string hashing."""

    def run(seed):
        command = [sys.executable, "-W", "ignore", "-c", EVALUATE, str(bases["bert"]), str(dev_file)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=True, cwd=ROOT).stdout

    first, second = run("1"), run("2")
    assert first == second and len(json.loads(first)) == 1 + 3 + 3 + 1 + 2


def test_every_result_has_a_complete_receipt(bases, dev_file):
    data = {"dataset", "revision", "rows", "sha256", "aggregation"}
    encoder = {"pooling", "dtype", "kind", "device", "model_sha256", "model_revision"}
    for result in evaluated(str(bases["bert"]), str(dev_file)):
        assert {"task", "metric", "value", "versions"} | data | encoder <= result.keys(), result["task"]
        assert {"csezoo", "torch", "transformers", "tokenizers", "numpy", "scipy"} <= result["versions"].keys()
        if result["metric"] == "accuracy":
            assert (result["seed"], result["protocol"]) == (1111, "SentEval fast")


def test_a_receipt_is_known_before_the_task_runs():
    task = TransferTask("toy", {"train": [(("a",), 0)], "test": [(("b",), 1)]}, "here")
    receipt = full_receipt(task, {"pooling": "cls"})
    assert receipt["rows"] == {"train": 1, "test": 1} and receipt["aggregation"] == "all"
    assert receipt == json.loads(json.dumps(receipt)), "it is unchanged after a round trip through a file"
