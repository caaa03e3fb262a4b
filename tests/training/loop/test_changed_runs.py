"""A run resumes only from its own complete checkpoints and only with an unchanged receipt, unless it is forced."""

import json
import os
import shutil

import pytest
from tokenizers.normalizers import BertNormalizer

from csezoo.training.errors import UserError
from csezoo.training.loading.tokenizers import load_tokenizer
from csezoo.training.loop.run_receipt import tokenizer_sha256
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import SENTENCES
from tests.training.loop.test_resume import same_run
from tests.training.loop.test_train import lines, values


@pytest.fixture(scope="module")
def whole(bases, dev_file, tmp_path_factory):
    """A finished run and its recipe."""
    directory = tmp_path_factory.mktemp("runs")
    train_file = directory / "sentences.txt"
    train_file.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    recipe = values(bases["bert"], train_file, dev_file, directory / "whole")
    run_recipe(make_recipe(recipe))
    return directory / "whole", recipe


@pytest.fixture
def broken(whole, tmp_path):
    """A copy of that run without results, as if it had been killed at its end."""
    run, recipe = whole
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    return tmp_path / "run", {**recipe, "output_dir": str(tmp_path / "run")}


def newest(run):
    return run / "checkpoints" / "step-00000006"


def change_state(run, **changes):
    for path in run.glob("checkpoints/*/state.json"):
        state = json.loads(path.read_text(encoding="utf-8"))
        state["origin"] |= changes
        path.write_text(json.dumps(state), encoding="utf-8")


def truncate(run):
    os.truncate(newest(run) / "optimizer.safetensors", 1000)


def lose_a_file(run):
    (newest(run) / "random-0.safetensors").unlink()


def truncate_the_state(run):
    os.truncate(newest(run) / "state.json", 40)


def change_the_seed(run):
    path = newest(run) / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    state["origin"]["seed"] = 7
    path.write_text(json.dumps(state), encoding="utf-8")


def test_a_run_is_resumed_from_its_newest_checkpoint(whole, broken, capsys):
    """Resuming from an older one would end with the same weights, but later."""
    run, recipe = broken
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]
    run_recipe(make_recipe(recipe))
    assert f"resumed from {newest(run)}" in capsys.readouterr().err
    same_run(whole[0], run)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (truncate, "optimizer.safetensors is incomplete"),
        (lose_a_file, "random-0.safetensors is incomplete"),
        (truncate_the_state, "state.json cannot be read"),
        (change_the_seed, "it belongs to another seed"),
    ],
)
def test_damaged_checkpoints_and_those_of_another_run_are_skipped(whole, broken, capsys, damage, why):
    run, recipe = broken
    damage(run)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 6, "lo')  # killed while it was written
    run_recipe(make_recipe(recipe))
    log = capsys.readouterr().err
    assert f"skipping {newest(run)}: {why}" in log
    assert f"resumed from {run / 'checkpoints' / 'step-00000004'}" in log
    same_run(whole[0], run)


def test_checkpoints_of_another_run_do_not_delete_those_of_this_run(whole, broken):
    run, recipe = broken
    for number in (7, 8):
        shutil.copytree(newest(run), run / "checkpoints" / f"step-0000000{number}")
        path = run / "checkpoints" / f"step-0000000{number}" / "state.json"
        path.write_text(path.read_text(encoding="utf-8").replace('"seed": 42', '"seed": 7'), encoding="utf-8")
    shutil.rmtree(newest(run))
    run_recipe(make_recipe(recipe))
    assert newest(run).is_dir()


def test_the_error_of_a_damaged_checkpoint_says_how_to_resume(broken):
    run, recipe = broken
    path = newest(run) / "model.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(UserError, match="step-00000006 could not be read .*; delete it"):
        run_recipe(make_recipe(recipe))
    shutil.rmtree(newest(run))
    run_recipe(make_recipe(recipe))


def test_resume_refuses_changed_data_and_accepts_a_new_modification_time(broken):
    run, recipe = broken
    shutil.copy(recipe["train_file"], run / "before.txt")
    os.utime(recipe["train_file"])
    run_recipe(make_recipe(recipe))
    (run / "results.json").unlink()
    with open(recipe["train_file"], "a", encoding="utf-8") as file:
        file.write("one sentence more .\n")
    try:
        with pytest.raises(UserError, match="was written with another train_file; .* or use --force"):
            run_recipe(make_recipe(recipe))
        run_recipe(make_recipe({**recipe, "force": True}))
    finally:
        shutil.copy(run / "before.txt", recipe["train_file"])


def test_the_tokenizer_checksum_ignores_truncation_and_padding(bases):
    tokenizer = load_tokenizer(str(bases["bert"]))
    before = tokenizer_sha256(tokenizer)
    tokenizer(["a", "a cat"], padding=True, truncation=True, max_length=3)
    assert tokenizer_sha256(tokenizer) == before
    tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    assert tokenizer_sha256(tokenizer) != before


@pytest.mark.parametrize("name", ["code", "tokenizer", "torch", "processes", "dev pairs"])
def test_resume_refuses_changed_code_or_launch_unless_forced(broken, name):
    run, recipe = broken
    change_state(run, **{name: "of another time"})
    with pytest.raises(UserError, match=f"step-00000006 was written with another {name}; "):
        run_recipe(make_recipe(recipe))
    run_recipe(make_recipe({**recipe, "force": True}))
    assert load_recipe(str(run / "recipe.yaml")).force is False, "--force must be given each time"


def test_resume_refuses_a_changed_batch_size_unless_forced(broken):
    run, recipe = broken
    recipe = {**recipe, "batch_size": 8, "max_steps": 8}
    with pytest.raises(UserError, match="another batch_size, max_steps; .*--overwrite to start again or --force"):
        run_recipe(make_recipe(recipe))
    assert run_recipe(make_recipe({**recipe, "force": True}))["training"]["updates"] == 8
    assert [line["step"] for line in lines(run) if "loss" in line] == list(range(1, 9))


def test_a_finished_run_can_be_forced_to_resume(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    recipe = {**whole[1], "output_dir": str(tmp_path / "run"), "max_steps": 7, "force": True}
    assert run_recipe(make_recipe(recipe))["training"]["updates"] == 7


def test_resume_refuses_a_checkpoint_of_older_code_unless_forced(broken):
    run, recipe = broken
    for path in run.glob("checkpoints/*/state.json"):
        state = json.loads(path.read_text(encoding="utf-8"))
        kept = {key: state[key] for key in ("scheduler", "scaler", "step", "best_step", "best_score")}
        path.write_text(json.dumps({**kept, "processes": 1, "precision": "no"}), encoding="utf-8")
    with pytest.raises(UserError, match="was written with another recipe, seed, .*code"):
        run_recipe(make_recipe(recipe))
    run_recipe(make_recipe({**recipe, "force": True}))
