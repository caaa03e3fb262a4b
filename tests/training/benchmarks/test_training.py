"""The benchmarks of training count the right passes, do the same work on both sides, and report it."""

import json
from dataclasses import replace

import pytest
import torch

from csezoo.training.benchmarks.epoch import benchmark_epoch
from csezoo.training.benchmarks.race import format_benchmark
from csezoo.training.benchmarks.trainer import benchmark_losses, benchmark_trainer
from csezoo.training.benchmarks.training import (
    Updates,
    allocated_at_most,
    benchmark_memory,
    benchmark_training,
    encoders,
    needed_passes,
)
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from csezoo.training.loop import precision
from csezoo.training.loop.precision import bf16_speed, choose_precision
from csezoo.training.loop.runs import run_recipe
from csezoo.training.loop.training_loop import on_device
from tests.methods import TESTED


def batch_of(updates):
    (batch,) = (on_device(batch, updates.accelerator.device) for batch in updates.batches())
    return batch


@pytest.mark.parametrize("method", TESTED)
def test_an_update_needs_these_encoder_passes(recipe, method):
    updates = Updates(recipe(method), steps=1)
    model = updates.built.model
    passes = needed_passes(model, batch_of(updates))
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
    (encoder_pass,) = needed_passes(updates.built.model, batch_of(updates))
    assert [keys.shape[2] for keys, _ in encoder_pass.prefixes] == [3] * len(encoder_pass.prefixes)
    assert encoder_pass.prefixes
    encoder_pass.forward()()
    encoder_pass.forward()()  # a cache would grow and fail
    assert all(keys.grad is not None for keys, _ in encoder_pass.prefixes)


def test_a_repeated_pass_of_packed_tokens_has_the_positions_of_the_recorded_one(recipe, lengths):
    """Packed prefixes are in one row. Together they can be longer than the table of positions."""
    updates = Updates(recipe("diffaug", prefix_length=8, train_file=lengths, batch_size=16), steps=1)
    backbone = updates.built.model.encoders()[0]
    outputs = []
    handle = backbone.register_forward_hook(lambda module, inputs, output: outputs.append(output[0].shape))
    (encoder_pass,) = needed_passes(updates.built.model, batch_of(updates))
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
    report = benchmark_training(recipe(train_file=lengths, max_length=32), steps=2, repeats=1)
    against = report["against padded"]
    assert against["limit"] == report["padded tokens"] / report["tokens"] > 1.1
    padding = report["padded tokens"] - report["tokens"]
    assert against["padding computed"] == {"ours": 0, "usual": padding} and report["padding computed"] == 0
    assert sum(encoder_pass["computed"] for encoder_pass in report["passes"]) < report["tokens"]
    assert against["speedup"] == pytest.approx(1 / against["ratio"])
    assert f"{against['speedup']:.2f} times the speed of padded steps" in format_benchmark(
        {"benchmark": "training", **report}
    )


def test_accumulated_batches_are_all_counted(recipe):
    report = benchmark_training(recipe(gradient_accumulation_steps=2), steps=2, repeats=1)
    assert report["padded tokens"] == sum(batch["input_ids"].numel() for batch in Updates(recipe(), 4).batches())


def test_tensors_that_exist_at_different_times_are_not_added():
    def run():
        for _ in range(3):
            torch.zeros(1000).add_(1)

    assert allocated_at_most(run, torch.device("cpu")) < 2 * 4000


# Of a tiny encoder, where vectors, masks and prefixes are large beside its activations.
@pytest.mark.parametrize(
    ("method", "most"), {"simcse": 1.01, "prdsimcse": 1.03, "diffcse": 1.01, "sgopt": 1.09, "l2pcsr": 1.13}.items()
)
def test_an_update_takes_little_more_memory_than_its_encoder_passes(recipe, method, most):
    report = benchmark_memory(recipe(method, max_length=32))
    peaks = report["peak bytes"]
    assert report["memory ratio"] == peaks["ours"] / peaks["usual"] < most
    assert report["kept bytes"] < peaks["usual"] and report["floor"] >= 1


def test_the_floor_of_memory_has_the_gradients_of_the_heads(recipe):
    report = benchmark_memory(recipe("simcse", projection="tanh"))
    weights = 32 * 32 + 32  # a linear layer
    assert report["peak bytes"]["usual"] * (report["floor"] - 1) == pytest.approx(4 * weights)


def test_the_parts_of_an_update_add_up_to_it(recipe):
    report = benchmark_epoch(recipe("simcse", eval_steps=5), steps=2)
    parts = report["parts"]
    assert set(parts) == {"data", "products", "elementwise", "checkpoint", "host"}
    assert min(parts[name] for name in ("data", "products", "elementwise", "checkpoint")) > 0
    # The profiler makes operators slower, so that nothing may be left for the host.
    assert sum(parts.values()) > 0.99 * report["update"]
    assert report["epoch"] == pytest.approx(report["update"] * 1e6 / report["batch_size"])
    assert 0 < report["floor"] < report["update"]
    assert list(report["largest"].values()) == sorted(report["largest"].values(), reverse=True)


@pytest.mark.slow
def test_the_trainer_benchmark_reports_speed_and_memory_of_both(recipe):
    plain = recipe(projection="none", learning_rate=0.0)
    report = benchmark_trainer(replace(plain, model={**plain.model, "pooling": "cls"}), steps=2, repeats=1)
    assert report["sentences per second"]["ours"] == 2 * 8 / report["seconds"]["ours"][0]
    assert report["speedup"] == pytest.approx(1 / report["ratio"])
    assert all(peak > 100 * 2**20 for peak in report["peak bytes"].values())
    assert report["precision"] == "no"


@pytest.mark.parametrize(
    ("benchmark", "changes", "line"),
    [
        (benchmark_trainer, {"method": "l2pcsr"}, "give a recipe of simcse and --projection none"),
        (benchmark_trainer, {"projection": "tanh"}, "give a recipe of simcse and --projection none"),
        (
            benchmark_losses,
            {"pooling": "prompt", "prompts": ["this sentence : {sentence} means {mask} ."]},
            "has no template",
        ),
    ],
)
def test_recipes_that_sentence_transformers_cannot_train_are_refused(recipe, benchmark, changes, line):
    with pytest.raises(UserError, match=line):
        benchmark(recipe(**changes), steps=1, repeats=1)


@pytest.mark.parametrize(("faster", "expected"), [(1.2, "bf16"), (0.8, "no")])
def test_automatic_precision_is_the_one_measured_as_faster(recipe, monkeypatch, faster, expected):
    assert bf16_speed(torch.device("cpu"), repeats=1) > 0
    monkeypatch.setattr(precision, "bf16_speed", lambda device: faster)
    assert [choose_precision(name) for name in ("auto", "no", "fp16", None)] == [expected, "no", "fp16", None]
    assert run_recipe(recipe(mixed_precision="auto", max_steps=1))["training"]["precision"] == expected


@pytest.mark.parametrize(
    ("arguments", "recipe", "shown"),
    [
        (["training", "--repeats", "1"], "simcse-bert-base-uncased", "by counted operations"),
        (["memory"], "simcse-bert-base-uncased", "with the gradients of the heads only"),
        (["epoch"], "simcse-bert-base-uncased", "floor by operations"),
        (["losses", "--repeats", "1"], "diffcse-bert-base-uncased-sts", "losses: "),
    ],
)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
def test_the_command_takes_keys_of_the_recipe_and_writes_a_report(
    arguments, recipe, shown, options, bases, tmp_path, capsys
):
    out = tmp_path / "report.json"
    generator = [f"--generator={bases['bert']}"] if "diffcse" in recipe else []
    options = [*options, *generator, "--mixed_precision=no"]
    main(["benchmark", arguments[0], recipe, "--steps", "1", "--out", str(out), *arguments[1:], *options])
    report = read_json(out)
    assert (report["steps"], report["batch_size"], report["machine"]["cpus"] >= 1) == (1, 8, True)
    printed = capsys.readouterr().out
    assert shown in printed and printed.strip().endswith(format_benchmark(report))


def test_a_stream_is_read_and_resumed(options, tmp_path, capsys):
    out = tmp_path / "stream.json"
    arguments = ["--batches", "5", "--out", str(out), *options, "--batch_size=16", "--shuffle_buffer=32"]
    main(["benchmark", "stream", "simcse-bert-base-uncased", *arguments])
    report = read_json(out)
    assert report["rows"] == 5 * 16
    assert report["place"]["batch"] == 4 and report["place"]["block"] == 2, "a block has two batches"
    assert report["rows per second"] == pytest.approx(80 / report["seconds to read"])
    assert f"{report['rows per second']:,.0f} rows per second" in capsys.readouterr().out
