"""Recipes of a tiny encoder on a few sentences."""

import pytest

from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.methods import run_keys


@pytest.fixture
def keys(bases, train_file):
    """The keys that a benchmark needs, as the command line takes them too."""
    return {"base_model": str(bases["bert"]), "train_file": str(train_file), "batch_size": 8, "max_length": 16}


@pytest.fixture
def options(keys):
    """The same as options of the command."""
    return [f"--{key}={value}" for key, value in {**keys, "eval_data": "none"}.items()]


@pytest.fixture
def recipe(keys, bases, dev_file, tmp_path):
    """A function that makes the recipe of a method, with changes."""
    files = {"dev_file": str(dev_file), "eval_data": "none", "output_dir": str(tmp_path / "run"), "report_to": "none"}

    def make(method="simcse", **changes):
        own = run_keys(method, bases["bert"])
        return make_recipe({**keys, **files, "seeds": [1], "mixed_precision": "no", **own, **changes})

    return make


@pytest.fixture
def lengths(tmp_path):
    """A file of sentences with one, two or three times the length."""
    texts = [" ".join(SENTENCES[number : number + 1 + number % 3]) for number in range(40)]
    (tmp_path / "lengths.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(tmp_path / "lengths.txt")
