"""DiffAug's runs with two stages: their files, and two processes."""

import shutil

import pytest
import torch
from matplotlib import image
from safetensors.torch import load_file

from csezoo.training.errors import UserError
from csezoo.training.loop.building import build
from csezoo.training.pictures.curves import draw_prefix_tuning
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.interpreters import run_two
from tests.training.runs import command_line, lines, same_but_for_rounding, same_run, train, values


@pytest.fixture(scope="session")
def two_stages(bases, train_file, dev_file, tmp_path_factory):
    """A function that returns a recipe of three updates on labelled pairs and three on sentences, each saved."""
    path = tmp_path_factory.mktemp("nli") / "nli.csv"
    rows = [f"{a},{b},{c}" for a, b, c in zip(SENTENCES[:40], SENTENCES[1:41], SENTENCES[50:90], strict=True)]
    path.write_text("sent0,sent1,hard_neg\n" + "\n".join(rows) + "\n", encoding="utf-8")
    keys = {"method": "diffaug", "max_steps": 3, "eval_steps": 1, "prefix_length": 4, "pooling": "prompt"}
    keys |= {"nli_file": str(path), "nli_columns": ["sent0", "sent1", "hard_neg"], "nli_batch_size": 16}
    keys |= {"nli_steps": 3, "nli_learning_rate": 0.01, "nli_weight": 0.001, "denoise": "train"}
    keys |= {"prompts": ['This sentence of "{sentence}" means{mask}.']}
    return lambda output, **changes: values(bases["bert"], train_file, dev_file, output, **{**keys, **changes})


@pytest.fixture(scope="session")
def run(two_stages, tmp_path_factory):
    """A finished run of one process."""
    output = tmp_path_factory.mktemp("diffaug") / "whole"
    train(two_stages(output))
    return output


def test_stage_one_logs_and_plots_delta_and_kappa(run):
    assert [line["step"] for line in lines(run) if "delta" in line] == [1, 2, 3]
    assert all(line["delta"] > 0 and "kappa" in line for line in lines(run) if "delta" in line)
    made = [line for line in lines(run) if "learning_rate" in line]
    assert [("nli" in line, "contrastive" in line) for line in made] == [(True, False)] * 3 + [(True, True)] * 3
    rates = [line["learning_rate"] for line in made]
    expected = [0.01, 0.01 * 2 / 3, 0.01 / 3, 1e-3, 1e-3 * 2 / 3, 1e-3 / 3]
    assert rates == pytest.approx(expected), "each stage has a schedule of its own"
    height, width, _ = image.imread(run / "prefix_tuning.png").shape
    assert width > height > 100


def lose_the_metrics(run):
    (run / "metrics.jsonl").unlink()


def lose_half_of_a_line(run):
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8")
    (run / "metrics.jsonl").write_text(metrics[:-20], encoding="utf-8")


@pytest.mark.parametrize("lose", [lose_the_metrics, lose_half_of_a_line])
def test_a_run_that_stopped_in_stage_two_resumes_though_it_lost_metrics(run, two_stages, tmp_path, lose):
    """They are restored from the checkpoint before they are drawn."""
    broken = shutil.copytree(run, tmp_path / "broken")
    for name in ("checkpoints/step-00000006", "results.json", "prefix_tuning.png"):
        path = broken / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lose(broken)
    train(two_stages(broken))
    same_run(run, broken)
    assert (broken / "prefix_tuning.png").read_bytes() == (run / "prefix_tuning.png").read_bytes()


def test_without_measures_nothing_is_plotted(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n', encoding="utf-8")
    draw_prefix_tuning(tmp_path / "metrics.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_stage_one_does_not_train_the_language_model(two_stages, tmp_path):
    recipe = two_stages(tmp_path / "run", max_steps=0)
    train(recipe)
    state = load_file(tmp_path / "run" / "checkpoints" / "step-00000003" / "model.safetensors")
    for name, tensor in build(make_recipe(recipe)).model.model.backbone.state_dict().items():
        assert torch.equal(state[f"model.backbone.{name}"], tensor), name
    first = load_file(tmp_path / "run" / "checkpoints" / "step-00000002" / "model.safetensors")
    moved = {name for name in state if not torch.equal(state[name], first[name])}
    assert {name.split(".")[0] for name in moved} == {"prefix_encoder", "nli_classifier", "model"}
    assert {name for name in moved if name.startswith("model.")} == {"model.prefixes"}


@pytest.mark.parametrize(
    "changes", [{"nli_weight": 0.0}, pytest.param({"views_module": "lora"}, marks=pytest.mark.slow)]
)
def test_two_processes_train_both_stages_as_one(two_stages, base_without_dropout, pairs, tmp_path, changes):
    """Without dropout; 40 triplets in batches of 13 leave one for the two processes."""
    keys = {**changes, **pairs, "base_model": str(base_without_dropout), "nli_batch_size": 13, "nli_steps": 4}
    keys |= {"max_steps": 2, "batch_size": 25, "eval_steps": 4, "nli_decay_steps": 4}
    keys |= {"adam_epsilon": 1e-3}  # gradients this small would be noise over noise
    one = two_stages(tmp_path / "one", **keys)
    train(one)
    two = two_stages(tmp_path / "two", **keys)
    _, err = run_two("-m", "csezoo.training.train", *command_line(two))
    assert "2 process(es)" in err
    same_but_for_rounding(tmp_path / "one", tmp_path / "two", step=6, near=1e-4, rtol=1e-3, logged=1e-2)


def test_prefixes_reduce_the_positions_for_text(base):
    recipe = {"base_model": str(base), "method": "diffaug"}
    assert build(make_recipe(recipe)).serving_tokenizer.model_max_length in (66 - 16, 64 - 16)
    with pytest.raises(UserError, match=r"max_length: 60 needs \d+ positions, .* has (50|48);"):
        build(make_recipe({**recipe, "max_length": 60}))


def test_recipes_that_do_not_fit_are_refused_in_one_line(two_stages, tmp_path):
    recipe = two_stages(tmp_path / "run")
    with pytest.raises(UserError, match="gradient_checkpointing: .*does not support"):
        train(recipe, gradient_checkpointing=True)
    with pytest.raises(UserError, match="nli_classes: training on labelled pairs needs"):
        train(recipe, nli_classes=0, nli_weight=0.0)
