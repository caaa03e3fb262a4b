"""Complete runs on a tiny base model: files, errors, one process and two."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from scipy.stats import spearmanr
from transformers import AutoModelForPreTraining

from csezoo.modeling import SimCSEConfig, SimCSEForContrastiveLearning
from csezoo.modeling.contrastive.published import load_published
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.ranks import load_ranks
from csezoo.training.evaluation.tasks.sts import load_pairs_file, unit_vectors
from csezoo.training.files import read_json, write_json
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import load_recipe, make_recipe
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES
from tests.interpreters import run_python
from tests.training.runs import LAUNCH_TWO, command_line, finish, lines, same_but_for_rounding, start, train, values


@pytest.fixture(scope="session")
def run(bases, train_file, dev_file, judging_file, tmp_path_factory):
    """A finished run of one process."""
    output = tmp_path_factory.mktemp("runs") / "tiny"
    changes = {"test_file": str(judging_file), "show_sentences": True}
    train(values(bases["bert"], train_file, dev_file, output, **changes))
    return output


def test_a_run_directory_has_the_documented_files(run):
    names = {path.name for path in run.iterdir()}
    assert {"recipe.yaml", "metrics.jsonl", "checkpoints", "best", "results.json", "ranks.npz"} <= names
    steps = [line["step"] for line in lines(run) if "dev" in line]
    assert steps == [0, 2, 4, 6], "dev is scored before training and every eval_steps"
    assert [line["step"] for line in lines(run) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    rates = [line["learning_rate"] for line in lines(run) if "loss" in line]
    assert rates == pytest.approx([1e-3 * (7 - step) / 6 for step in range(1, 7)], abs=1e-12)


def test_a_run_keeps_the_ranks_that_its_scores_were_computed_from(run, dev_file):
    (result,) = [row for row in read_json(run / "results.json")["results"] if row["task"] == "test"]
    pairs = replace(load_pairs_file(str(dev_file)), name="test")
    (ranked,) = load_ranks(run / "ranks.npz", [pairs], result["model_sha256"])
    assert 100 * spearmanr(ranked, pairs.scores).statistic == pytest.approx(result["value"], abs=1e-9)


def test_best_is_the_strictly_best_dev_score(run):
    dev = {line["step"]: line["dev"] for line in lines(run) if "dev" in line}
    training = read_json(run / "results.json")["training"]
    assert training["dev"] == max(dev.values())
    assert training["best_step"] == min(step for step, score in dev.items() if score == max(dev.values()))


def test_a_run_that_never_improves_logs_a_warning(tiny, capsys):
    assert train(tiny(learning_rate=1e-30, max_steps=2, seeds=[1]))["training"]["best_step"] == 0
    assert "best/ has the initial weights" in capsys.readouterr().err


def test_test_pairs_work_without_dev_pairs(tiny, dev_file, capsys):
    results = train(tiny(max_steps=1, dev_file=None, test_file=str(dev_file)))
    assert [result["task"] for result in results["results"]] == ["test"] and results["training"]["dev"] is None
    assert results["neighbours"] == [], "the pairs are private"
    assert "The finished repository" in capsys.readouterr().out


def test_results_have_the_cost_of_training(run):
    training = read_json(run / "results.json")["training"]
    assert 0 < training["update_seconds"] <= training["seconds"]
    assert training["rows_per_second"] == pytest.approx(6 * 16 / training["update_seconds"], rel=0.01)
    assert training["peak_rss_bytes"] > 2**27 and training["peak_device_bytes"] is None, "torch alone needs more"


def test_pictures_are_in_the_run_and_in_the_repository(run):
    for name in ("training_curves.png", "similarities.png"):
        assert (run / "best" / name).read_bytes() == (run / name).read_bytes()
        assert (run / name).read_bytes().startswith(b"\x89PNG")
    card = (run / "best" / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"!\[.+?\]\((.+?)\)", card)
    assert linked == ["simcse.svg", "training_curves.png", "similarities.png"]
    assert all((run / "best" / name).is_file() for name in linked)
    assert "training rows per second" in card


def test_the_card_shows_the_nearest_sentences_before_and_after_training(run):
    nearest = read_json(run / "results.json")["neighbours"]
    card = (run / "best" / "README.md").read_text(encoding="utf-8")
    encode, _ = load_encoder(str(run / "best"))
    assert nearest
    for row in nearest:
        query, *others = unit_vectors(encode([row["query"], *sorted(set(SENTENCES) - {row["query"]})]))
        assert row["after"]["cosine"] == pytest.approx(max(query @ other for other in others), abs=1e-5)
        assert row["before"]["sentence"] != row["query"] and row["before"]["cosine"] != row["after"]["cosine"]
        shown = [f"{row[side]['cosine']:.2f} {row[side]['sentence']}" for side in ("before", "after")]
        assert f"| {row['query']} | {' | '.join(shown)} |" in card


def test_results_have_receipts(run):
    results = read_json(run / "results.json")
    assert [result["task"] for result in results["results"]] == ["dev", "test"]
    for result in results["results"]:
        assert result["rows"] == len(SENTENCES) // 2
        assert {"sha256", "revision", "pooling", "dtype", "versions", "seed", "aggregation"} <= result.keys()


def test_best_loads_in_a_clean_interpreter_with_the_same_vectors(run, tmp_path):
    code = f"""
import json
from transformers import AutoModel
model = AutoModel.from_pretrained({str(run / "best")!r}, trust_remote_code=True)
print(json.dumps(model.encode({SENTENCES[:9]!r}).tolist()))
"""
    here = load_published(run / "best").encode(SENTENCES[:9])
    np.testing.assert_allclose(run_without_csezoo(code, tmp_path), here, atol=1e-6)


def test_best_can_be_trained_on(run):
    model = AutoModelForPreTraining.from_pretrained(run / "best", config=SimCSEConfig.from_pretrained(run / "best"))
    assert type(model) is SimCSEForContrastiveLearning
    assert model.projection.dense.weight.std().item() == pytest.approx(0.02, abs=0.005), "a fresh head"


def test_a_finished_run_is_reused_and_another_recipe_refused(run, bases, train_file, dev_file, judging_file, capsys):
    same = values(bases["bert"], train_file, dev_file, run, test_file=str(judging_file))
    before = (run / "best" / "model.safetensors").stat().st_mtime_ns
    train(same)
    assert (run / "best" / "model.safetensors").stat().st_mtime_ns == before
    refused = run_python("-m", "csezoo.training.train", *command_line({**same, "learning_rate": 2e-3}))
    assert refused.returncode == 2
    assert "another" in refused.stderr and "learning_rate" in refused.stderr and "--overwrite" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_two_processes_train_as_one(base_without_dropout, train_file, pairs, dev_file, tmp_path):
    """Without dropout, and with a smaller batch in the middle of the run (96 pairs in batches of 25)."""
    # Of a smaller ε, the smallest gradients would be noise over noise.
    changes = {**pairs, "batch_size": 25, "eval_steps": 6, "adam_epsilon": 1e-3}
    one = values(base_without_dropout, train_file, dev_file, tmp_path / "one", **changes)
    train(one)
    two = values(base_without_dropout, train_file, dev_file, tmp_path / "two", **changes)
    code, _, err = finish(start(two, *LAUNCH_TWO, ACCELERATE_USE_CPU="true"))
    assert code == 0, err
    assert "2 process(es)" in err
    same_but_for_rounding(tmp_path / "one", tmp_path / "two", step=6)


@pytest.mark.slow
def test_a_launch_with_too_few_processes_is_refused(tiny):
    launch = ("accelerate", "launch", "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision")
    launch += ("no", "--dynamo_backend", "no", "-m", "csezoo.training.train")
    code, _, err = finish(start(tiny(), *launch))
    assert code != 0
    assert "error: several processes were requested, but each would train alone" in err


def test_several_seeds_are_aggregated(bases, train_file, dev_file, tmp_path, capsys):
    recipe = make_recipe(values(bases["roberta"], train_file, dev_file, tmp_path, seeds=[1, 2], max_steps=2))
    results = run_recipe(recipe)
    out, err = capsys.readouterr()
    assert [line for line in err.splitlines() if line.startswith("seed ")] == [
        "seed 1 of 2: 1",
        "seed 2 of 2: 2",
    ]
    scores = [result["value"] for result in results["results"]]
    assert results["summary"] == [
        {"task": "dev", "mean": pytest.approx(np.mean(scores)), "sd": pytest.approx(np.std(scores, ddof=1)), "n": 2}
    ]
    assert len(set(scores)) > 1, "seeds differ"
    best = results["seeds"][scores.index(max(scores))]
    assert results["best_seed"] == best
    weights = "best/model.safetensors"
    assert (tmp_path / weights).read_bytes() == (tmp_path / f"seed-{best}" / weights).read_bytes()
    assert f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}" in (tmp_path / "best" / "README.md").read_text()
    assert "± " in out


def test_triplets_prompt_bf16_checkpointing_and_tensorboard_together(tiny, triplets, tmp_path):
    recipe = tiny(train_file=triplets["nli_file"], text_columns=triplets["nli_columns"], epochs=1, max_steps=None)
    recipe |= {"hard_negative_weight": 1.0, "mixed_precision": "bf16"}
    recipe |= {"pooling": "prompt", "prompts": ['This sentence of "{sentence}" means{mask}.'], "denoise": "always"}
    recipe |= {"projection_at_test": True, "gradient_checkpointing": True, "report_to": "tensorboard"}
    results = train(recipe)
    assert results["training"]["updates"] == 3  # 40 triplets in batches of 16
    assert list((tmp_path / "run" / "tracker").rglob("events.out.tfevents*"))
    csezoo = load_published(tmp_path / "run" / "best").config.csezoo
    assert csezoo["template"]["text"] == recipe["prompts"][0]


@pytest.mark.parametrize("changes", [{"num_workers": 2}, {"num_workers": 1, "streaming": True, "shuffle_buffer": 20}])
def test_batches_of_workers_are_those_of_the_run_itself(bases, train_file, dev_file, tmp_path, changes):
    weights = []
    for workers in (0, changes["num_workers"]):
        out = tmp_path / f"run-{workers}"
        train(values(bases["bert"], train_file, dev_file, out, **{**changes, "num_workers": workers, "max_steps": 3}))
        weights.append(load_file(out / "checkpoints" / "step-00000003" / "model.safetensors"))
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_accumulation_over_several_epochs_uses_every_batch(tiny):
    changes = {"max_train_sentences": 48, "epochs": 3, "gradient_accumulation_steps": 2, "max_steps": None}
    results = train(tiny(**changes))
    assert results["training"]["updates"] == 5  # 9 batches in updates of two; the tenth batch begins another epoch


def test_overwrite_replaces_a_run_once(tiny, tmp_path):
    first = tiny(max_steps=2, report_to="tensorboard")
    train(first)
    AcceleratorState._reset_state(reset_partial_state=True)
    train(first, max_steps=1, overwrite=True)
    assert lines(tmp_path / "run")[-1]["step"] == 1
    assert list((tmp_path / "run" / "tracker").rglob("events.out.tfevents*"))
    assert load_recipe(str(tmp_path / "run" / "recipe.yaml")).overwrite is False


@pytest.mark.parametrize("output", [".", ".."])
def test_a_run_does_not_delete_its_base_model(bases, train_file, dev_file, tmp_path, output):
    """The base is the run's directory, or the `best/` of an older run in it."""
    base = Path(shutil.copytree(bases["bert"], tmp_path / "run" / "best"))
    before = {path: path.read_bytes() for path in base.iterdir()}
    with pytest.raises(UserError, match=f"output_dir: .* has the base_model {base}; give another --output_dir"):
        train(values(base, train_file, dev_file, base / output, overwrite=True))
    assert {path: path.read_bytes() for path in base.iterdir()} == before


def test_a_tokenizer_whose_merges_miss_a_token_is_one_line(bases, train_file, dev_file, tmp_path):
    base = Path(shutil.copytree(bases["roberta"], tmp_path / "base"))
    state = read_json(base / "tokenizer.json")
    first, second = state["model"]["merges"][0]
    state["model"]["vocab"]["☃☃"] = state["model"]["vocab"].pop(first + second)
    write_json(base / "tokenizer.json", state)
    with pytest.raises(UserError, match="base: its tokenizer could not be loaded .*out of vocabulary"):
        train(values(base, train_file, dev_file, tmp_path / "run"))
    with pytest.raises(UserError, match="base: its tokenizer could not be loaded .*out of vocabulary"):
        load_encoder(str(base), pooling="cls")


def test_a_model_without_any_loss_is_one_line(tiny):
    with pytest.raises(UserError, match="contrastive_weight: 0 needs an auxiliary loss with a weight; set one"):
        train(tiny(contrastive_weight=0))


def test_resume_refuses_another_launch(tiny, tmp_path, monkeypatch):
    recipe = tiny(max_steps=1)
    train(recipe)
    (tmp_path / "run" / "results.json").unlink()
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(UserError, match="with another precision"):
        train(recipe)


def test_without_dev_the_last_model_is_the_best(tiny, tmp_path):
    assert train(tiny(max_steps=3, dev_file=None))["training"]["best_step"] == 3
    last = load_file(tmp_path / "run" / "checkpoints" / "step-00000003" / "model.safetensors")
    best = load_file(tmp_path / "run" / "best" / "model.safetensors")
    encoder = {name for name in best if "pooler" not in name}
    for name in encoder:
        assert torch.equal(last[f"model.backbone.{name}"], best[name]), name
    assert len(encoder) > 20
