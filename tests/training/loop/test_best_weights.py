"""A resumed run serves the weights, the update and the score that its checkpoint remembers."""

import shutil

import pytest
from safetensors.torch import load_file

from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from tests.training.runs import flip_a_bit, lines, newest, same_run, train


def served(run):
    return load_file(run / "best" / "model.safetensors")


def same_weights(one, other):
    """A published encoder has a pooler of zeros too, because transformers would draw one."""
    one, other = ({name: t for name, t in each.items() if "pooler" not in name} for each in (one, other))
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def check_score(results):
    """The score that chose `best/` is the score of what is in it."""
    (dev,) = [result["value"] for result in results["results"] if result["task"] == "dev"]
    assert results["training"]["dev"] == pytest.approx(dev, abs=1e-4)


def lose_the_last_evaluation(run):
    """As a kill between the last evaluation, which replaces the best weights, and its checkpoint."""
    assert read_json(run / "results.json")["training"]["best_step"] == 6, "else nothing is tested"
    (run / "results.json").unlink()
    shutil.rmtree(newest(run))


def test_best_is_what_the_checkpoint_remembers_though_the_repeated_update_is_another(whole, tmp_path):
    """A GPU, other processes or another precision change the scores; here it is the learning rate."""
    run = shutil.copytree(whole[0], tmp_path / "run")
    lose_the_last_evaluation(run)
    results = train(whole[1], output_dir=str(run), learning_rate=0.3, force=True)
    assert results["training"]["best_step"] == 4
    check_score(results)
    kept = load_file(run / "best_weights" / "step-00000004.safetensors")
    assert same_weights(served(run), {name.removeprefix("backbone."): tensor for name, tensor in kept.items()})


def test_best_that_is_damaged_is_made_again(whole, broken):
    run, recipe = broken
    flip_a_bit(run / "best" / "model.safetensors")
    train(recipe)
    same_run(whole[0], run)


def test_a_whitening_that_is_changed_or_left_out_is_that_of_the_recipe(whole, tmp_path):
    recipe = {**whole[1], "output_dir": str(tmp_path / "run"), "force": True}
    for size in (8, 4, None):
        results = train(recipe, whitening=size)
        assert read_json(tmp_path / "run" / "best" / "config.json")["csezoo"].get("whitening") == size
    check_score(results)
    assert same_weights(served(tmp_path / "run"), served(whole[0]))


def test_a_soup_that_is_left_out_later_leaves_the_best_weights(whole, tmp_path):
    recipe = {**whole[1], "output_dir": str(tmp_path / "run"), "eval_steps": 1, "learning_rate": 1e-3}
    soup = train(recipe, soup=4)["training"]["soup"]
    assert len(soup) > 1, "else nothing is tested"
    (tmp_path / "run" / "best_weights" / f"step-{soup[-1]:08d}.safetensors").unlink()
    (tmp_path / "run" / "results.json").unlink()
    with pytest.raises(UserError, match=r"best_weights/step-0.* is missing; put a copy of it back, or use --force"):
        train(recipe, soup=4)
    check_score(train(recipe, soup=0, force=True))


def test_a_soup_that_is_added_later_begins_with_the_best_weights_so_far(broken):
    results = train(broken[1], soup=2, force=True)
    assert results["training"]["soup"] == [6]
    check_score(results)


def test_other_dev_pairs_score_the_best_weights_again(broken, tmp_path):
    with open(broken[1]["dev_file"], encoding="utf-8") as file:
        (tmp_path / "dev.csv").write_text("".join(file.readlines()[:40]), encoding="utf-8")
    check_score(train(broken[1], dev_file=str(tmp_path / "dev.csv"), force=True))


def test_a_run_forced_to_resume_without_dev_pairs_is_drawn(broken):
    """The update that is chosen, the last one, has no score; those before have one."""
    run, recipe = broken
    (run / "training_curves.png").unlink()
    training = train(recipe, dev_file=None, max_steps=7, force=True)["training"]
    assert training["best_step"] == 7 and training["dev"] is None
    assert (run / "training_curves.png").is_file()


def test_a_run_forced_to_resume_with_dev_pairs_that_never_improve_is_drawn(broken, tmp_path):
    """The update that is chosen was the last one before, and its score was not logged."""
    recipe = {**broken[1], "output_dir": str(tmp_path / "without")}
    train(recipe, dev_file=None)
    training = train(recipe, learning_rate=1e-30, max_steps=7, force=True)["training"]
    assert training["best_step"] == 6 and training["dev"] is not None
    assert [line["step"] for line in lines(tmp_path / "without") if "dev" in line] == [7]


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), flip_a_bit], ids=["missing", "changed"])
def test_best_weights_that_are_lost_are_named_and_force_serves_the_best_of_what_follows(broken, capsys, damage):
    run, recipe = broken
    damage(run / "best_weights" / "step-00000006.safetensors")
    with pytest.raises(UserError, match="step-00000006.safetensors (is missing|has another checksum); put a copy of"):
        train(recipe)
    results = train(recipe, max_steps=7, force=True)
    assert "the best of the updates from here on is served" in capsys.readouterr().err
    assert results["training"]["best_step"] == 7
    check_score(results)
