"""The benchmarks of training count the right passes, do the same work on both sides, and report it."""

import json
from dataclasses import replace

import pytest
import torch

from csezoo.training.benchmarks.race import format_benchmark
from csezoo.training.benchmarks.scaling import AXES, benchmark_scaling
from csezoo.training.benchmarks.soak import Sample, benchmark_soak, summary
from csezoo.training.benchmarks.trainer import benchmark_trainer
from csezoo.training.benchmarks.training import Updates, benchmark_training, encoders, needed_passes
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.loop.precision import bf16_speed, choose_precision
from csezoo.training.loop.runs import run_recipe
from csezoo.training.loop.training_loop import on_device
from csezoo.training.pictures.benchmarks import draw_scaling, draw_soak
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.methods import TESTED, run_keys
from tests.training.runs import values


@pytest.fixture
def recipe(bases, train_file, dev_file, tmp_path):
    def make(method="simcse", **changes):
        options = {**run_keys(method, bases["bert"]), "batch_size": 8, "length_window": 0, **changes}
        return make_recipe(values(bases["bert"], train_file, dev_file, tmp_path / "run", **options))

    return make


@pytest.mark.parametrize("method", TESTED)
def test_an_update_needs_these_encoder_passes(recipe, method):
    updates = Updates(recipe(method), steps=1)
    model = updates.built.model
    (batch,) = (on_device(batch, updates.accelerator.device) for batch in updates.batches())
    passes = needed_passes(model, batch)
    found = [(type(p.encoder).__name__, p.needs, len(p.inputs["input_ids"])) for p in passes]
    assert found == [*TESTED[method].passes]
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    for encoder_pass in passes:
        model.zero_grad()
        encoder_pass.forward()()
        named = [(name, weight) for name, weight in encoder_pass.encoder.named_parameters() if "pooler" not in name]
        with_gradient = [name for name, weight in named if weight.grad is not None]
        trainable = [name for name, weight in named if weight.requires_grad]
        assert with_gradient == (trainable if encoder_pass.needs == "parameters" else [])
    assert {id(parameter) for parameter in model.parameters() if parameter.requires_grad} == trained


def test_a_repeated_pass_has_the_prefixes_of_the_recorded_one(recipe):
    updates = Updates(recipe("diffaug", prefix_length=3, padded=True), steps=1)
    (batch,) = (on_device(batch, updates.accelerator.device) for batch in updates.batches())
    (encoder_pass,) = needed_passes(updates.built.model, batch)
    assert [keys.shape[2] for keys, _ in encoder_pass.prefixes] == [3] * len(encoder_pass.prefixes)
    assert encoder_pass.prefixes
    encoder_pass.forward()()
    encoder_pass.forward()()  # a cache would grow and fail
    assert all(keys.grad is not None for keys, _ in encoder_pass.prefixes)


@pytest.fixture
def lengths(tmp_path):
    """A file of sentences with one, two or three times the length."""
    texts = [" ".join(SENTENCES[number : number + 1 + number % 3]) for number in range(40)]
    (tmp_path / "lengths.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(tmp_path / "lengths.txt")


def test_a_repeated_pass_of_packed_tokens_has_the_positions_of_the_recorded_one(recipe, lengths):
    """Packed prefixes are in one row. Together they can be longer than the table of positions."""
    updates = Updates(recipe("diffaug", prefix_length=8, train_file=lengths), steps=1)
    (batch,) = (on_device(batch, updates.accelerator.device) for batch in updates.batches())
    backbone = updates.built.model.encoders()[0]
    outputs = []
    handle = backbone.register_forward_hook(lambda module, inputs, output: outputs.append(output[0].shape))
    (encoder_pass,) = needed_passes(updates.built.model, batch)
    encoder_pass.forward()()
    handle.remove()
    assert encoder_pass.prefixes[0][0].shape[2] > backbone.config.max_position_embeddings
    assert outputs[0] == outputs[1]


def test_encoders_are_the_transformers_models_inside_a_training_model(recipe):
    model = Updates(recipe("diffcse"), steps=1).built.model
    assert encoders(model) == [model.model.backbone, model.discriminator, model.generator]


def test_the_training_benchmark_reports_passes_tokens_and_operations(recipe):
    report = benchmark_training(recipe("l2pcsr", inner_steps=1, padded=True), steps=2, repeats=3)
    assert report["layout"] == "padded" and "against padded" not in report
    assert len(report["seconds"]["ours"]) == 3 and report["ratio"] > 0
    assert 1 <= report["floor"] < 1.2
    assert [encoder_pass["needs"] for encoder_pass in report["passes"]] == ["masks", "parameters"]
    assert report["padded tokens"] == sum(batch["input_ids"].numel() for batch in Updates(recipe(), 2).batches())
    assert report["seconds for 10^6 sentences"] == pytest.approx(1e6 / 16 * report["median"]["ours"])
    assert report["padded tokens per second"] == report["padded tokens"] / report["median"]["ours"]
    assert 0 < report["share of a matrix product's"] < 1  # a tiny model has small matrix products only
    assert report["peak bytes"] > 100 * 2**20
    json.dumps(report)


def test_the_training_benchmark_compares_with_padded_updates(recipe, lengths):
    report = benchmark_training(recipe(train_file=lengths), steps=2, repeats=1)
    against = report["against padded"]
    assert against["limit"] == report["padded tokens"] / report["tokens"] > 1.1
    padding = report["padded tokens"] - report["tokens"]
    assert against["padding computed"] == {"ours": 0, "usual": padding} and report["padding computed"] == 0
    assert sum(encoder_pass["computed"] for encoder_pass in report["passes"]) < report["tokens"]
    assert against["speedup"] == pytest.approx(1 / against["ratio"])
    assert f"{against['speedup']:.2f} times the speed of padded steps" in format_benchmark(report)


def test_accumulated_batches_are_all_counted(recipe):
    report = benchmark_training(recipe(gradient_accumulation_steps=2), steps=2, repeats=1)
    assert report["padded tokens"] == sum(batch["input_ids"].numel() for batch in Updates(recipe(), 4).batches())


@pytest.mark.slow
def test_the_trainer_benchmark_reports_speed_and_memory_of_both(recipe):
    plain = recipe(projection="none", learning_rate=0.0)
    report = benchmark_trainer(replace(plain, model={**plain.model, "pooling": "cls"}), steps=2, repeats=1)
    assert report["sentences per second"]["ours"] == 2 * 8 / report["seconds"]["ours"][0]
    assert report["speedup"] == pytest.approx(1 / report["ratio"])
    assert all(peak > 100 * 2**20 for peak in report["peak bytes"].values())
    assert report["precision"] == "no"


@pytest.mark.parametrize("changes", [{"method": "l2pcsr"}, {"projection": "tanh"}])
def test_recipes_that_sentence_transformers_cannot_train_are_refused(recipe, changes):
    with pytest.raises(UserError, match="give a recipe of simcse and --projection none"):
        benchmark_trainer(recipe(**changes), steps=1, repeats=1)


@pytest.mark.slow
def test_scaling_is_measured_by_separate_runs(recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(AXES, "batch_size", (4,))
    report = benchmark_scaling(recipe(), axes=["batch_size"], steps=2, repeats=1)
    points = report["axes"]["batch_size"]
    assert list(points) == ["4"] and all(point["rows per second"] > 0 for point in points.values())
    draw_scaling(report["axes"], tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 5000
    with pytest.raises(UserError, match="axes: 'inner_steps' must be one of batch_size, max_length, processes"):
        benchmark_scaling(recipe(), axes=["inner_steps"])
    with pytest.raises(UserError, match="batch_size 4: the run failed: error: .*no_such"):
        benchmark_scaling(recipe(base_model="./no_such"), axes=["batch_size"])


@pytest.mark.slow
def test_soak_samples_memory_and_files_of_training_and_of_encoding(recipe, tmp_path):
    report = benchmark_soak(recipe(), steps=2, lines=300, every=0.05)
    for program in report["programs"].values():
        assert max(program["rss"]) > 100 * 2**20 and max(program["files"]) > 3
        assert program["second"] == sorted(program["second"])
    assert "encoding: " in format_benchmark(report)
    draw_soak(report["programs"], tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 5000


@pytest.mark.slow
def test_soak_names_the_program_that_failed_and_its_error(recipe):
    with pytest.raises(UserError, match="csezoo.training.train failed: error: .*no_such"):
        benchmark_soak(recipe(base_model="./no_such"), steps=1, lines=1, every=0.05)


def test_growth_is_measured_from_the_second_quarter_to_the_last():
    leaking = summary([Sample(second, rss=1000 * second, files=5) for second in range(100)])
    assert leaking["growth"] == {"rss": 50_000, "files": 0}
    with pytest.raises(UserError, match="3 samples are too few"):
        summary([Sample(0, 1, 1)] * 3)


def test_automatic_precision_is_the_one_measured_as_faster(recipe):
    faster = bf16_speed(torch.device("cpu"))
    if 0.8 < faster < 1.25:
        pytest.skip(f"bf16 is {faster:.2f} times as fast as float32 here: auto may choose either")
    expected = "bf16" if faster > 1 else "no"
    assert [choose_precision(name) for name in ("auto", "no", "fp16", None)] == [expected, "no", "fp16", None]
    results = run_recipe(recipe(mixed_precision="auto", max_steps=1), show=False)
    assert results["training"]["precision"] == expected


def test_the_command_takes_keys_of_the_recipe(recipe, tmp_path, capsys):
    out = tmp_path / "report.json"
    keys = {"base_model": recipe().base_model, "train_file": recipe().train_file, "batch_size": 8, "eval_data": "none"}
    options = [text for key, value in keys.items() for text in (f"--{key}", str(value))]
    steps = ["--steps", "1", "--repeats", "1", "--out", str(out)]
    main(["benchmark", "training", "simcse-bert-base-uncased", *options, *steps])
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["batch_size"] == 8 and len(report["seconds"]["ours"]) == 1
    assert f"; {report['floor']:.3f} by counted operations" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["recipes", "--batch_size", "8"])
    assert "unrecognized arguments: --batch_size 8" in capsys.readouterr().err
