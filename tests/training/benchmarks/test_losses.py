"""The benchmark of the losses makes the same updates on both sides, and reports them."""

import pytest

from csezoo.training.benchmarks.losses import benchmark_losses
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from csezoo.training.recipes import make_recipe
from tests.methods import run_keys
from tests.training.runs import values


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
def test_the_trainer_and_the_own_loop_take_turns(bases, train_file, tmp_path, capsys):
    keys = {"method": "diffcse", "base_model": bases["bert"], "generator": bases["bert"], "train_file": train_file}
    keys |= {"batch_size": 8, "max_length": 16, "mixed_precision": "no"}
    options = [f"--{key}={value}" for key, value in keys.items()]
    recipe = "diffcse-bert-base-uncased-sts"
    command = ["benchmark", "losses", recipe, "--steps", "2", "--repeats", "1", "--out", str(tmp_path / "out.json")]
    main([*command, *options])
    report = read_json(tmp_path / "out.json")
    assert (report["method"], report["steps"], report["batch_size"]) == ("diffcse", 2, 8)
    assert report["ratio"] == report["median"]["ours"] / report["median"]["usual"]
    assert "losses: " in capsys.readouterr().out


def test_a_recipe_with_a_prompt_is_refused(bases, train_file, dev_file, tmp_path):
    prompt = {"pooling": "prompt", "prompts": ["this sentence : {sentence} means {mask} ."]}
    options = {**run_keys("simcse", bases["bert"]), **prompt}
    recipe = make_recipe(values(bases["bert"], train_file, dev_file, tmp_path, **options))
    with pytest.raises(UserError, match="has no template"):
        benchmark_losses(recipe)
