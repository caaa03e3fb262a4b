"""A run resumes only from its own complete checkpoints and only with an unchanged receipt, unless it is forced."""

import json
import os
import shutil

import pytest
from safetensors.torch import load_file, save_file
from tokenizers.normalizers import BertNormalizer

from csezoo.training.errors import UserError, others
from csezoo.training.files import read_json, write_json
from csezoo.training.hub import sha256
from csezoo.training.loading.tokenizers import load_tokenizer, tokenizer_sha256
from csezoo.training.recipes import load_recipe
from tests.conftest import SENTENCES
from tests.training.runs import flip_a_bit, lines, newest, same_run, train, values


def rewrite_state(path, state):
    """Write another `state.json` as if it had been written so: the checksums fit."""
    write_json(path, state)
    checksums = path.with_name("checksums.json")
    written = read_json(checksums)
    write_json(checksums, {**written, "state.json": sha256(path)})


def change_state(run, checkpoint="*", **changes):
    for path in run.glob(f"checkpoints/{checkpoint}/state.json"):
        state = read_json(path)
        rewrite_state(path, {**state, "origin": {**state["origin"], **changes}})


def flip_in(name):
    return lambda run: flip_a_bit(newest(run) / name)


def take_from_the_step_before(run):
    shutil.copy(run / "checkpoints" / "step-00000004" / "optimizer.safetensors", newest(run))


def rename_the_step_before(run):
    shutil.rmtree(newest(run))
    shutil.copytree(run / "checkpoints" / "step-00000004", newest(run))


def truncate(run):
    os.truncate(newest(run) / "optimizer.safetensors", 1000)


def lose_a_file(run):
    (newest(run) / "random-0.safetensors").unlink()


def truncate_the_state(run):
    os.truncate(newest(run) / "state.json", 40)


def nest_the_checksums(run):
    (newest(run) / "checksums.json").write_text("[" * 100_000, encoding="utf-8")


def change_the_seed(run):
    change_state(run, newest(run).name, seed=7)


def test_a_run_is_resumed_from_its_newest_checkpoint(whole, broken, capsys):
    """Resuming from an older one would end with the same weights, but later."""
    run, recipe = broken
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]
    train(recipe)
    assert f"resumed from {newest(run)}" in capsys.readouterr().err
    same_run(whole[0], run)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (truncate, "optimizer.safetensors is incomplete"),
        (lose_a_file, "random-0.safetensors is incomplete"),
        (truncate_the_state, "state.json cannot be read"),
        (change_the_seed, "it belongs to another seed"),
        (flip_in("model.safetensors"), "model.safetensors has another checksum"),
        (flip_in("optimizer.safetensors"), "optimizer.safetensors has another checksum"),
        (flip_in("random-0.safetensors"), "random-0.safetensors has another checksum"),
        (flip_in("metrics.jsonl"), "metrics.jsonl has another checksum"),
        (flip_in("state.json"), "state.json "),
        (flip_in("checksums.json"), ""),
        (nest_the_checksums, "checksums.json cannot be read"),
        (take_from_the_step_before, "optimizer.safetensors has another checksum"),
        (rename_the_step_before, "it is of step 4"),
    ],
)
def test_damaged_checkpoints_and_those_of_another_run_are_skipped(whole, broken, capsys, damage, why):
    run, recipe = broken
    damage(run)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 6, "lo')  # killed while it was written
    train(recipe)
    log = capsys.readouterr().err
    assert f"skipping {newest(run)}: {why}" in log
    assert f"resumed from {run / 'checkpoints' / 'step-00000004'}" in log
    same_run(whole[0], run)


def test_checkpoints_of_another_run_do_not_delete_those_of_this_run(whole, broken):
    run, recipe = broken
    for number in (7, 8):
        shutil.copytree(newest(run), run / "checkpoints" / f"step-0000000{number}")
        path = run / "checkpoints" / f"step-0000000{number}" / "state.json"
        state = json.loads(path.read_text(encoding="utf-8").replace('"seed": 42', '"seed": 7'))
        rewrite_state(path, {**state, "step": number})
    shutil.rmtree(newest(run))
    train(recipe)
    assert newest(run).is_dir()


def test_a_run_whose_checkpoints_are_all_damaged_stops_and_changes_nothing(broken):
    """It would start again, and lose what was trained; --force does not accept damage either."""
    run, recipe = broken
    for checkpoint in run.glob("checkpoints/step-*"):
        flip_a_bit(checkpoint / "model.safetensors")
    metrics = (run / "metrics.jsonl").read_bytes()
    line = (
        "step-00000006 is damaged .model.safetensors has another checksum.*, and no checkpoint before it is sound; put"
    )
    for force in (False, True):
        with pytest.raises(UserError, match=line):
            train(recipe, force=force)
    assert (run / "metrics.jsonl").read_bytes() == metrics
    shutil.rmtree(run / "checkpoints")
    train(recipe)


@pytest.mark.parametrize("lines_left", [0, 4])
def test_metrics_that_were_lost_are_restored_with_a_warning(whole, broken, lines_left, capsys):
    run, recipe = broken
    kept = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:lines_left]
    (run / "metrics.jsonl").write_text("".join(kept) + '{"step"' * bool(kept), encoding="utf-8")
    train(recipe)
    assert f"metrics.jsonl was changed after it was logged; restoring it from {newest(run)}" in capsys.readouterr().err
    same_run(whole[0], run)


def test_what_a_killed_process_left_half_written_is_deleted(whole, broken):
    run, recipe = broken
    for name in (".metrics.jsonl.7.partial", "checkpoints/partial-00000006/model.safetensors", "best.partial/a"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("half", encoding="utf-8")
    half = run / "checkpoints" / "step-00000002"
    shutil.copytree(newest(run), half)
    (half / "optimizer.safetensors").unlink()
    train(recipe)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]
    same_run(whole[0], run)
    assert not list(run.rglob("*partial*"))


def change_weights(base):
    tensors = load_file(base / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][7, 3] += 1e-3
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})


def change_the_configuration(base):
    path = base / "config.json"
    write_json(path, {**read_json(path), "layer_norm_eps": 1e-6})


def change_the_tokenizer(base):
    path = base / "tokenizer_config.json"
    write_json(path, {**read_json(path), "do_lower_case": False})


@pytest.mark.parametrize(
    ("model", "change", "name"),
    [
        ("base", change_weights, "base_model"),
        ("base", change_the_configuration, "base_model"),
        ("base", change_the_tokenizer, "tokenizer"),
        ("generator", change_weights, "generator"),
    ],
)
def test_resume_refuses_a_changed_model_unless_forced(bases, train_file, dev_file, tmp_path, model, change, name):
    for copy in ("base", "generator"):
        shutil.copytree(bases["bert"], tmp_path / copy)
    keys = {"method": "diffcse", "generator": str(tmp_path / "generator")} if model == "generator" else {}
    recipe = values(tmp_path / "base", train_file, dev_file, tmp_path / "run", max_steps=2, **keys)
    train(recipe)
    (tmp_path / "run" / "results.json").unlink()
    change(tmp_path / model)
    with pytest.raises(UserError, match=f"step-00000002 was written with {others([name])}; "):
        train(recipe)
    train(recipe, force=True)


@pytest.mark.parametrize(
    ("key", "row", "name"),
    [("train_file", "one sentence more .", "train_file"), ("dev_file", "one more,another one,1", "dev pairs")],
)
def test_resume_refuses_changed_data_and_accepts_a_new_modification_time(broken, key, row, name):
    run, recipe = broken
    shutil.copy(recipe[key], run / "before.txt")
    os.utime(recipe[key])
    train(recipe)
    with open(recipe[key], "a", encoding="utf-8") as file:
        file.write(row + "\n")
    try:
        with pytest.raises(UserError, match=f"is finished, and was trained with {others([name])}; .* or use --force"):
            train(recipe)
        train(recipe, force=True)
        (run / "results.json").unlink()
        with pytest.raises(UserError, match=f"was written with {others([name])}; .* or use --force"):
            train(recipe)
        train(recipe, force=True)
    finally:
        shutil.copy(run / "before.txt", recipe[key])


@pytest.mark.parametrize("streaming", [False, True])
def test_resume_refuses_changed_rows_of_a_data_set_without_a_pinned_revision(bases, dev_file, tmp_path, streaming):
    """As on the Hub: the recipe has only its name. Here it is a directory that the library reads."""
    (tmp_path / "sentences").mkdir()
    file = tmp_path / "sentences" / "train.csv"
    for number, sentences in enumerate((SENTENCES, [*SENTENCES[1:], SENTENCES[0]])):
        file.write_text("\n".join(["text", *sentences]) + "\n", encoding="utf-8")
        recipe = values(bases["bert"], "", dev_file, tmp_path / "run", max_steps=1)
        recipe |= {"train_file": None, "dataset": str(tmp_path / "sentences"), "streaming": streaming}
        if number == 0:
            train(recipe)
            (tmp_path / "run" / "results.json").unlink()
            os.utime(file)
            train(recipe)
            (tmp_path / "run" / "results.json").unlink()
    with pytest.raises(UserError, match="step-00000001 was written with another dataset; "):
        train(recipe)


def test_the_tokenizer_checksum_ignores_truncation_and_padding(bases):
    tokenizer = load_tokenizer(str(bases["bert"]))
    before = tokenizer_sha256(tokenizer)
    tokenizer(["a", "a cat"], padding=True, truncation=True, max_length=3)
    assert tokenizer_sha256(tokenizer) == before
    tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    assert tokenizer_sha256(tokenizer) != before


def test_resume_refuses_changed_code_and_launch_unless_forced(broken):
    run, recipe = broken
    names = ["code", "device", "tokenizer", "torch", "processes", "dev pairs", "test pairs"]
    change_state(run, **dict.fromkeys(names, "of another time"))
    with pytest.raises(UserError, match="step-00000006 was written with ") as error:
        train(recipe)
    assert [name for name in names if others([name]) not in str(error.value)] == []
    train(recipe, force=True)
    assert load_recipe(str(run / "recipe.yaml")).force is False, "--force must be given each time"


def test_resume_refuses_a_changed_batch_size_unless_forced(broken):
    run, recipe = broken
    recipe = {**recipe, "batch_size": 8, "max_steps": 8}
    with pytest.raises(
        UserError, match="another batch_size, other max_steps; .*--overwrite to start again or --force"
    ):
        train(recipe)
    assert train(recipe, force=True)["training"]["updates"] == 8
    assert [line["step"] for line in lines(run) if "loss" in line] == list(range(1, 9))


def test_a_forced_learning_rate_is_used_from_the_first_update_on(broken):
    run, recipe = broken
    train(recipe, learning_rate=5e-4, max_steps=8, force=True)
    rates = [line["learning_rate"] for line in lines(run) if "loss" in line]
    assert rates[:6] == pytest.approx([3e-4 * (7 - step) / 6 for step in range(1, 7)])
    assert rates[6:] == pytest.approx([5e-4 * 2 / 8, 5e-4 * 1 / 8])


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"lora_rank": 8}, "tensors"),
        ({"ema_decay": 0.99}, "tensors"),
        ({"mlm_weight": 0.1}, "tensors"),
        ({"projection_at_test": True}, "tensors"),
        ({"optimizer": "rmsprop"}, "optimizer"),
    ],
)
def test_a_change_that_force_cannot_resume_with_is_one_line_and_overwrite_starts_again(broken, keys, name):
    run, recipe = broken
    recipe = {**recipe, **keys, "max_steps": 7}
    checkpoints = sorted((run / "checkpoints").iterdir())
    line = f"{newest(run)}: --force cannot resume with this change of the {name}; undo it, .* or delete {run} to start"
    with pytest.raises(UserError, match=line):
        train(recipe, force=True)
    assert sorted((run / "checkpoints").iterdir()) == checkpoints
    assert train(recipe, overwrite=True)["training"]["updates"] == 7
    assert [line["step"] for line in lines(run) if "loss" in line] == list(range(1, 8))


@pytest.mark.parametrize(
    "mistake",
    [
        {"base_model": "./nowhere"},
        {"method": "diffcse", "generator": "./nowhere"},
        {"text_columns": ["nowhere"]},
        {"teachers": ["./nowhere"], "rank_weight": 1.0},
        {"max_length": 9999},
    ],
    ids=" ".join,
)
def test_a_mistake_beside_overwrite_does_not_cost_the_old_run(broken, mistake):
    run, recipe = broken
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="nowhere|9999"):
        train(recipe, **mistake, overwrite=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_forced_change_that_was_stopped_needs_force_again(broken, train_up_to):
    run, recipe = broken
    changed = {**recipe, "learning_rate": 5e-4, "max_steps": 8}
    train_up_to("step 7", {**changed, "force": True})
    with pytest.raises(UserError, match=f"{newest(run)} cannot be resumed: it belongs to another recipe; undo"):
        train(changed)
    assert train(changed, force=True)["training"]["updates"] == 8


def test_a_change_that_force_cannot_resume_with_can_be_undone(whole, broken):
    run, recipe = broken
    with pytest.raises(UserError, match="--force cannot resume with this change of the optimizer"):
        train(recipe, optimizer="rmsprop", force=True)
    train(recipe, force=True)
    same_run(whole[0], run)


def test_after_the_last_update_force_cannot_change_what_chooses_among_them(broken):
    """The best update so far would be served as if it had been chosen so. One that follows can be chosen."""
    run, recipe = broken
    line = "select_by: --force cannot change it after the last update; undo the change, .* or use --overwrite"
    with pytest.raises(UserError, match=line):
        train(recipe, select_by="last", force=True)
    assert train(recipe, select_by="last", max_steps=8, force=True)["training"]["best_step"] == 8


def test_what_chooses_cannot_be_changed_where_patience_has_ended_the_run(tiny, tmp_path):
    recipe = tiny(patience=1, learning_rate=0.0)
    assert train(recipe)["training"]["updates"] == 2
    with pytest.raises(UserError, match="select_by: --force cannot change it after the last update"):
        train(recipe, select_by="last", force=True)
    assert train(recipe, select_by="last", patience=9, force=True)["training"]["best_step"] == 6


def test_force_cannot_train_other_tensors_from_then_on(bases, train_file, dev_file, tmp_path):
    """The optimizer knows them by number: each would get the moments of another one."""
    recipe = values(bases["bert"], train_file, dev_file, tmp_path, method="sgopt", max_steps=1)
    train(recipe)
    changed = {**recipe, "freeze_embeddings": False, "max_steps": 2, "force": True}
    with pytest.raises(UserError, match="--force cannot resume with this change of the trained tensors"):
        train(changed)


def test_results_and_card_name_what_a_run_was_resumed_with(broken):
    """The command on the card does not make such a run again. The second time, the run was finished."""
    run, recipe = broken
    for steps in (7, 8):
        recipe = {**recipe, "learning_rate": 5e-4, "max_steps": steps, "force": True}
        results = train(recipe)
    assert results["training"]["resumed_with_another"] == ["recipe"] and results["training"]["updates"] == 8
    card = (run / "best" / "README.md").read_text(encoding="utf-8")
    assert "Seed 42 was resumed by force with another recipe.\n" in card


def test_a_run_with_more_updates_than_the_recipe_asks_for_is_refused(broken):
    """It would be evaluated as if the updates had never been made."""
    run, recipe = broken
    line = "step-00000006 has more updates than the 4 that the recipe asks for"
    with pytest.raises(UserError, match=line):
        train(recipe, max_steps=4, force=True)


@pytest.mark.parametrize("content", ["", "null", "[]", '{"model": "x"}', '{"model": "x', "[" * 10_000])
def test_a_damaged_results_file_of_a_run_is_named(broken, content):
    run, recipe = broken
    (run / "results.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="results.json"):
        train(recipe)


def test_a_damaged_recipe_of_a_run_is_named(broken):
    run, recipe = broken
    for content in ("1: 2\nseeds: [1]\n", "[" * 10_000, "seeds: [1]\nseeds: [2]\n"):
        (run / "recipe.yaml").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="recipe.yaml"):
            train(recipe)


@pytest.mark.parametrize("content", ["", "null", "[]", "5", "{}", "[" * 10_000])
def test_a_state_with_other_content_is_a_damaged_checkpoint(broken, content):
    run, recipe = broken
    for state in run.glob("checkpoints/*/state.json"):
        state.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="state.json cannot be read"):
        train(recipe)
