"""What selects the best checkpoint (`select_by`)."""

import statistics
from dataclasses import replace
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from csezoo.modeling.methods.simcse.model import SimCSEModel
from csezoo.training.evaluation.selection import dev_score, load_dev_tasks
from csezoo.training.evaluation.tasks.transfer import TransferTask
from csezoo.training.loop import runs
from csezoo.training.loop.background import BackgroundWriter
from csezoo.training.loop.best_model import BestModel
from csezoo.training.loop.building import build
from csezoo.training.loop.runs import load_dev
from csezoo.training.loop.training_log import TrainingLog
from csezoo.training.recipes import make_recipe
from csezoo.training.tuning.objectives import COLUMNS
from tests.training.runs import lines, train, values


def test_the_last_checkpoint_is_served_though_another_is_better_on_dev(bases, train_file, dev_file, tmp_path):
    keys = values(bases["bert"], train_file, dev_file, tmp_path, select_by="last", learning_rate=0.05)
    training = train(keys)["training"]
    scores = {line["step"]: line["dev"] for line in lines(tmp_path) if "dev" in line}
    assert training["best_step"] == 6 and training["dev"] == scores[6] < max(scores.values())
    last = load_file(tmp_path / "checkpoints/step-00000006/model.safetensors")
    served = {name: t for name, t in load_file(tmp_path / "best/model.safetensors").items() if "pooler" not in name}
    assert all(last[f"model.backbone.{name}"].equal(tensor) for name, tensor in served.items())


@pytest.fixture
def few_rows(monkeypatch):
    """Returns a function that loads real dev tasks with a part of their rows; a run uses it."""

    def load(choice, data):
        return [few(task) for task in load_dev_tasks(choice, data)]

    monkeypatch.setattr(runs, "load_dev_tasks", load)
    return load


def few(task):
    """A task with a part of its rows; of a transfer task every part keeps five of the rarest class."""
    if isinstance(task, TransferTask):
        return replace(task, parts={part: rows[:: 1 + len(rows) // 1000] for part, rows in task.parts.items()})
    return replace(task, pairs=task.pairs[:200], scores=task.scores[:200])


def test_the_mean_of_two_dev_sets_selects(tiny, dev_file, real_data, tmp_path, few_rows):
    data = str(real_data / "data" / "senteval")
    keys = {"dev_file": None, "test_file": str(dev_file), "select_by": "sts-sickr-dev", "eval_data": data}
    results = train(tiny(**keys, max_steps=2))
    of_dev = {row["task"]: row["value"] for row in results["results"] if row["task"].endswith("-dev")}
    assert of_dev.keys() == {"STSBenchmark-dev", "SICK-R-dev"}
    # Words that the tiny vocabulary lacks make pairs tie but for rounding, so score with the same packed batches.
    encode = SimCSEModel.from_pretrained(tmp_path / "run" / "best").encode
    assert results["training"]["dev"] == dev_score(encode, few_rows("sts-sickr-dev", data))


def test_contrastive_tension_serves_the_encoder_that_is_better_on_dev(bases, train_file, dev_file, tmp_path):
    recipe = make_recipe(values(bases["bert"], train_file, dev_file, tmp_path, method="contrastive_tension"))
    built = build(recipe)
    served, encoders = built.model.model, (built.model.model.backbone, built.model.first)
    with torch.no_grad():
        for weights in encoders[1].parameters():
            weights.add_(torch.randn_like(weights))
    states = [{name: tensor.clone() for name, tensor in encoder.state_dict().items()} for encoder in encoders]
    scores = []
    for state in states:
        served.backbone.load_state_dict(state)
        scores.append(dev_score(partial(served.eval().encode, tokenizer=built.serving_tokenizer), load_dev(recipe)))
    better = states[scores.index(max(scores))]
    assert scores[0] != scores[1]
    for step, placed in enumerate((states, states[::-1])):  # each of the two places is once that of the better one
        for encoder, state in zip(encoders, placed, strict=True):
            encoder.load_state_dict(state)
        log = TrainingLog(tmp_path, Accelerator(cpu=True))
        with BackgroundWriter() as writer:
            best = BestModel(tmp_path, built, recipe, load_dev(recipe), log)
            best.evaluate(step, writer)
        assert best.best_score == max(scores)
        assert all(best.weights.read(step)[f"backbone.{name}"].equal(tensor) for name, tensor in better.items())


@pytest.mark.slow
def test_the_mean_accuracy_of_the_transfer_tasks_on_dev_selects(tiny, dev_file, real_data, few_rows):
    keys = {"dev_file": None, "test_file": str(dev_file), "select_by": "transfer-dev", "max_steps": 1}
    results = train(tiny(**keys, eval_data=str(real_data / "data" / "senteval"), eval_batch_size=512))
    rows = [row for row in results["results"] if row["task"].endswith("-dev")]
    assert len(rows) == 7 and all(row["value"] == row["dev"] for row in rows)
    assert results["training"]["dev"] == pytest.approx(statistics.mean(row["value"] for row in rows), abs=0.5)


def test_the_choices_of_a_search_and_of_a_run_have_the_same_names():
    objectives = {name: [column.suite for column in columns] for name, columns in COLUMNS.items()}
    assert objectives == {
        "sts-dev": ["sts-dev"],
        "sts-sickr-dev": ["sts-dev", "sickr-dev"],
        "transfer-dev": ["transfer"],
        "unlabelled": [],
    }


def test_the_transfer_tasks_that_select_are_on_dev_and_in_the_fast_protocol(real_data):
    tasks = load_dev_tasks("transfer-dev", str(real_data / "data" / "senteval"))
    assert [(task.name, task.protocol) for task in tasks][:2] == [("MR-dev", "fast"), ("CR-dev", "fast")]
    assert len(tasks) == 7
