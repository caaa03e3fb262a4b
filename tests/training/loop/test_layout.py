"""A run leaves out the padding of its batches, and records that it does."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from accelerate import Accelerator

from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from csezoo.training.loop.building import build, choose_layout
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.training.runs import finish, launch_shards, lines, train, values


@pytest.fixture(scope="module")
def recipe(bases, dev_file, tmp_path_factory):
    """Sentences of several lengths."""
    directory = tmp_path_factory.mktemp("layout")
    texts = [" ".join(SENTENCES[number : number + 1 + number % 3]) for number in range(len(SENTENCES))]
    (directory / "train.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")

    def make(name, **changes):
        return make_recipe(
            values(bases["bert"], directory / "train.txt", dev_file, directory / name, max_steps=4, **changes)
        )

    return make


@pytest.fixture(scope="module")
def runs(recipe):
    """A finished run of each layout."""
    made = {"packed": recipe("packed"), "padded": recipe("padded", padded=True)}
    for one in made.values():
        run_recipe(one, show=False)
    return made


def state(recipe, number=4):
    path = Path(recipe.output_dir) / "checkpoints" / f"step-{number:08d}" / "state.json"
    return read_json(path)


def padding(recipe):
    return [line["padding_tokens"] for line in lines(Path(recipe.output_dir)) if "loss" in line]


def test_padding_is_left_out_and_the_tokens_computed_are_logged(runs):
    assert padding(runs["packed"]) == [0] * 4
    assert min(padding(runs["padded"])) > 50


def test_the_layout_is_in_the_receipt(runs):
    for layout, recipe in runs.items():
        assert state(recipe)["origin"]["layout"] == layout


def resume(recipe, **changes):
    run = Path(recipe.output_dir)
    (run / "results.json").unlink(missing_ok=True)
    run_recipe(replace(recipe, **changes), show=False)


def test_another_value_of_the_key_does_not_resume_a_run(runs):
    with pytest.raises(UserError, match="has a run with another padded"):
        resume(runs["packed"], padded=True)


def test_another_layout_does_not_resume_a_run(runs, monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")
    with pytest.raises(UserError, match="was written with another layout"):
        resume(runs["packed"])


def test_a_run_says_why_it_computes_padding(recipe, monkeypatch, caplog):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")
    made, accelerator = recipe("said"), Accelerator()
    model = build(made).model
    with caplog.at_level(logging.INFO):
        choose_layout(made, model, accelerator)
        assert model.layout == "padded"
    assert "padding is computed: compiled code would be compiled again for every batch" in caplog.text
    assert model.model.computes_padding


@pytest.mark.slow
def test_shards_of_two_processes_train_like_one_without_padding(base_without_dropout, tmp_path):
    """A process encodes its own sentences, so that the packed tokens of the two differ in number."""
    texts = [" ".join(SENTENCES[number : number + 1 + number % 3]) for number in range(len(SENTENCES))]
    rows = zip(texts, reversed(texts), strict=True)
    (tmp_path / "pairs.csv").write_text("a,b\n" + "".join(f"{a},{b}\n" for a, b in rows), encoding="utf-8")
    changes = {"text_columns": ["a", "b"], "batch_size": 25, "adam_epsilon": 1e-3}
    one = values(base_without_dropout, tmp_path / "pairs.csv", "", tmp_path / "one", **changes)
    del one["dev_file"]
    two = {**one, "output_dir": str(tmp_path / "two")}
    train(one)
    code, _, err = finish(launch_shards(two))
    assert code == 0, err
    for left, right in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert left == pytest.approx(right, rel=1e-4)
        assert left.get("padding_tokens", 0) == 0
