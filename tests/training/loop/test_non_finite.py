"""Losses that are not finite and collapsed encoders: reported at once, with a way to repeat them."""

import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from csezoo.modeling import DiffCSEConfig, DiffCSEForContrastiveLearning, SentenceEncoderConfig
from csezoo.training.files import read_json
from csezoo.training.loop.health import collapse_signs, dead_channels, spread
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES, tiny_config
from tests.refusals import refusal
from tests.training.runs import DIVERGING, lines, train, values


def test_the_error_of_a_loss_that_is_not_finite_names_update_and_rows(tiny, bases, tmp_path):
    line = refusal(run_recipe, make_recipe(tiny(**DIVERGING)))
    step = int(re.match(r"the loss is nan at step (\d+) \(sentences ", line)[1])
    assert 1 < step < 12, "found at the twelfth update, which is not the first"
    assert not [logged for logged in lines(tmp_path / "run") if "loss" in logged], "the mean of such losses is none"
    directory = tmp_path / "run" / "non_finite" / f"step-{step:08d}"
    report = read_json(directory / "report.json")
    assert (report["step"], report["loss"]) == (step, "nan")
    rows = report["rows"]["sentences"]
    assert len(set(rows)) == 16 and f"(sentences {', '.join(map(str, rows[:5]))} …)" in line
    batch = load_file(directory / "batch-0.safetensors")["0.input_ids"]  # (16, 2, T)
    expected = AutoTokenizer.from_pretrained(bases["bert"])([SENTENCES[row] for row in rows]).input_ids
    assert batch[:, 0].tolist() == expected


def test_the_error_of_a_stage_on_labelled_pairs_names_its_rows(tiny, bases, tmp_path, triplets):
    changes = {**DIVERGING, **triplets, "nli_steps": 12, "nli_learning_rate": 100.0, "nli_batch_size": 8}
    line = refusal(run_recipe, make_recipe(tiny(**changes)))
    step = int(re.match(r"the loss is nan at step (\d+) \(labelled ", line)[1])
    directory = tmp_path / "run" / "non_finite" / f"step-{step:08d}"
    rows = read_json(directory / "report.json")["rows"]["labelled"]
    premises = load_file(directory / "batch-0.safetensors")["0.nli_input_ids"][:, 0]
    assert len(rows) == 8
    assert (
        premises.tolist() == AutoTokenizer.from_pretrained(bases["bert"])([SENTENCES[row] for row in rows]).input_ids
    )


def test_resuming_repeats_the_update_that_is_not_finite(tiny, tmp_path):
    recipe = tiny(**DIVERGING)
    line = refusal(run_recipe, make_recipe(recipe))
    assert "starts again" in line
    again = refusal(run_recipe, make_recipe({**recipe, "log_steps": 1}))
    assert re.search(r"at step (\d+)", again)[1] == re.search(r"at step (\d+)", line)[1]
    logged = [logged["step"] for logged in lines(tmp_path / "run") if "loss" in logged]
    assert logged == list(range(1, int(re.search(r"at step (\d+)", line)[1])))


def test_a_gradient_that_is_not_finite_is_noticed_under_a_finite_loss(tiny, tmp_path, monkeypatch):
    """A loss of 1e38 fits float32; the squares of its gradient do not. No allowed weight makes one so large."""
    declared = SentenceEncoderConfig.__dataclass_fields__["mlm_weight"]
    unlimited = {"key": declared.metadata["key"]._replace(allowed="[0, inf)")}
    monkeypatch.setattr(declared, "metadata", unlimited)
    recipe = tiny(mlm_weight=2e37)
    assert refusal(run_recipe, make_recipe(recipe)).startswith("the gradient norm is inf at step 1 (sentences ")
    assert not list((tmp_path / "run").glob("checkpoints/*")), "no weights after it are kept"


def test_a_stream_keeps_the_batch_without_row_numbers(tiny, tmp_path):
    line = refusal(run_recipe, make_recipe(tiny(**DIVERGING, streaming=True)))
    assert re.match(r"the loss is nan at step \d+; ", line)
    assert list((tmp_path / "run").glob("non_finite/step-*/batch-0.safetensors"))


def test_spread_equals_its_definition():
    vectors = np.random.default_rng(0).normal(size=(9, 5))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    center = sum(units) / 9
    assert spread(7 * vectors) == pytest.approx(
        np.sqrt(np.mean([np.sum((u - center) ** 2) for u in units])), abs=1e-12
    )


def test_equal_embeddings_are_reported_as_collapsed():
    vectors = np.ones((5, 4)) + np.random.default_rng(0).normal(scale=1e-6, size=(5, 4))
    (line,) = collapse_signs(vectors, torch.nn.Linear(2, 2))
    assert line.startswith("the embeddings have collapsed: on dev their distance from the mean is ")
    assert collapse_signs(np.eye(4), torch.nn.Linear(2, 2)) == []


def test_the_warning_names_a_batch_norm_without_variance():
    model = DiffCSEForContrastiveLearning(DiffCSEConfig(backbone_config=tiny_config("bert"), rtd_weight=0.0))
    assert dead_channels(model) == {}
    with torch.no_grad():
        model.projection.reduce.weight[:3] = 0
    model.train()
    for _ in range(130):  # the running variance of these falls by a tenth with each batch
        model.project(torch.randn(8, 2, 32))
    assert dead_channels(model) == {"projection.reduce_norm": (3, 32)}
    assert collapse_signs(np.eye(4), model) == ["batch norm projection.reduce_norm: 3 of 32 channels have no variance"]


def test_a_run_warns_of_a_collapsed_encoder(bases, train_file, dev_file, tmp_path, capsys):
    model = AutoModel.from_pretrained(bases["bert"])
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.weight.zero_()
        model.encoder.layer[-1].output.LayerNorm.bias.fill_(1.0)
    model.save_pretrained(tmp_path / "collapsed")
    AutoTokenizer.from_pretrained(bases["bert"]).save_pretrained(tmp_path / "collapsed")
    line = refusal(run_recipe, make_recipe(values(tmp_path / "collapsed", train_file, dev_file, tmp_path / "run")))
    assert "all similarities are equal" in line
    assert "step 0: the embeddings have collapsed: on dev their distance from the mean is " in capsys.readouterr().err


def test_mixed_precision_leaves_the_dev_score_in_float32(tiny, tmp_path):
    results = train(tiny(mixed_precision="bf16", max_steps=4, eval_steps=1))
    chosen = results["training"]["best_step"]
    scores = {line["step"]: line["dev"] for line in lines(tmp_path / "run") if "dev" in line}
    assert chosen > 0 and results["results"][0]["dtype"] == "float32"
    assert scores[chosen] == results["results"][0]["value"], "in training as of the model loaded in float32"
