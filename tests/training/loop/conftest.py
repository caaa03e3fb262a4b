"""A finished run of six updates, and an interrupted one."""

import shutil

import pytest

from tests.conftest import SENTENCES
from tests.training.runs import train, values


@pytest.fixture(scope="module")
def whole(bases, dev_file, tmp_path_factory):
    """A finished run and its recipe."""
    directory = tmp_path_factory.mktemp("runs")
    train_file = directory / "sentences.txt"
    train_file.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    # So slow that every evaluation is better than the one before.
    recipe = values(
        bases["bert"], train_file, shutil.copy(dev_file, directory), directory / "whole", learning_rate=3e-4
    )
    train(recipe)
    return directory / "whole", recipe


@pytest.fixture
def broken(whole, tmp_path):
    """A copy of that run without results, as if it had been killed at its end."""
    run, recipe = whole
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    return tmp_path / "run", {**recipe, "output_dir": str(tmp_path / "run")}
