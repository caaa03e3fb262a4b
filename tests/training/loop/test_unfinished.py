"""A run that is not finished has a repository too: the best of its newest checkpoint, written by `csezoo publish`."""

import shutil

import pytest
import yaml
from filelock import FileLock
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.files import LOCK
from csezoo.training.loop.runs import write_unfinished
from csezoo.training.publishing.staging import stage, verify_files
from tests.training.runs import flip_a_bit, newest, same_run, train

OF_THE_END = {"README.md", "similarities.png", "training_curves.png"}  # what evaluation adds


def files(repository):
    paths = {path.relative_to(repository).as_posix(): path for path in repository.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if name not in OF_THE_END}


@pytest.fixture
def unfinished(broken):
    """A copy of a finished run, as if it had been killed before it wrote its repository."""
    shutil.rmtree(broken[0] / "best")
    return broken[0]


def test_the_repository_is_the_one_that_the_end_of_the_run_writes(whole, unfinished):
    assert write_unfinished(unfinished) == 6
    assert files(unfinished / "best") == files(whole[0] / "best")
    train(whole[1], output_dir=str(unfinished))
    same_run(whole[0], unfinished)


def test_it_is_the_best_that_the_newest_checkpoint_names(unfinished):
    shutil.rmtree(newest(unfinished))
    assert write_unfinished(unfinished) == 4
    kept = load_file(unfinished / "best_weights" / "step-00000004.safetensors")
    written = load_file(unfinished / "best" / "model.safetensors")
    assert all(written[name.removeprefix("backbone.")].equal(tensor) for name, tensor in kept.items())


def test_a_soup_and_a_whitening_are_part_of_it(whole, tmp_path):
    run = tmp_path / "run"
    train(whole[1], soup=2, whitening=8, eval_steps=1, output_dir=str(run))
    expected = files(run / "best")
    (run / "results.json").unlink()
    write_unfinished(run)
    assert files(run / "best") == expected and "2_Dense/model.safetensors" in expected


def test_the_command_writes_it_and_stages_it_without_results(unfinished, tmp_path, capsys):
    for to, refused in {"no-owner": "'no-owner' has no owner", "zoo/tiny": "was not published"}.items():
        assert not (unfinished / "best").exists(), "a bad name is refused before it is written"
        with pytest.raises(SystemExit):
            main(["publish", str(unfinished), "--to", to])
        captured = capsys.readouterr()
        assert refused in captured.err
    assert captured.out.startswith(f"written   {unfinished}/best, the best of the first 6 updates\n")
    stage(str(unfinished), "zoo/tiny", tmp_path / "staged")
    assert "card, audit" in verify_files(tmp_path / "staged")
    staged = {path.name for path in (tmp_path / "staged").iterdir()}
    assert "recipe.yaml" in staged and "results.json" not in staged
    assert ModelCard.load(tmp_path / "staged" / "README.md").data.eval_results is None


def test_what_is_missing_or_changed_is_refused(unfinished):
    def refused(match):
        with pytest.raises(UserError, match=match):
            write_unfinished(unfinished)
        assert not (unfinished / "best").exists()

    recipe = unfinished / "recipe.yaml"
    before = recipe.read_text(encoding="utf-8")
    recipe.write_text(yaml.safe_dump({**yaml.safe_load(before), "batch_size": 8}), encoding="utf-8")
    refused("step-00000006 was written with another recipe; undo the change")
    recipe.write_text(before, encoding="utf-8")
    flip_a_bit(unfinished / "best_weights" / "step-00000006.safetensors")
    refused("step-00000006.safetensors has another checksum; put a copy of it back")
    shutil.rmtree(unfinished / "checkpoints")
    refused("has no checkpoint yet")


def test_a_run_that_another_process_trains_is_refused(unfinished):
    with FileLock(unfinished / LOCK), pytest.raises(UserError, match="another process is training in"):
        write_unfinished(unfinished)
