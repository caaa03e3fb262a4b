"""The tokens that an L2P-CSR run weakens in given sentences: masks, picture and errors."""

import shutil

import numpy as np
import pytest
import torch
import yaml
from matplotlib.image import imread
from safetensors.torch import load_file, save_file

from csezoo.training.cli.parser import main
from csezoo.training.loop.runs import run_recipe
from csezoo.training.loop.weakened import weakened_tokens
from csezoo.training.pictures.weakened_tokens import WeakenedView, draw_weakened_tokens
from csezoo.training.recipes import load_recipe, make_recipe
from tests.refusals import refusal
from tests.training.runs import values

SENTENCES = ["the small cat sees the river .", "a dog", "the old horse finds the tree ."]


def train(base, train_file, output, **changes):
    recipe = values(base, train_file, None, output)
    recipe |= {"method": "l2pcsr", "max_steps": 2, "dev_file": None, **changes}
    run_recipe(make_recipe(recipe), show=False)
    return output


@pytest.fixture(scope="module")
def run(bases, train_file, tmp_path_factory):
    """A finished run of two seeds, each with a checkpoint at step 1 and at step 2."""
    return train(bases["bert"], train_file, tmp_path_factory.mktemp("runs") / "two", seeds=[5, 6], eval_steps=1)


def weakened(run, **options):
    return [view.weakened for views in weakened_tokens(run, SENTENCES, **options).values() for view in views]


def test_every_token_of_every_view_is_weakened_or_not_at_every_layer(run):
    sentences = weakened_tokens(run, SENTENCES)
    assert list(sentences) == SENTENCES
    for sentence, views in sentences.items():
        assert len(views) == 2
        for view in views:
            words = ["[UNK]" if word == "a" else word for word in sentence.split()]
            assert view.tokens == ["[CLS]", *words, "[SEP]"]
            assert view.weakened.shape == (3, len(view.tokens))
            assert set(np.unique(view.weakened)) <= {0.0, 1.0}
    masks = weakened(run)
    assert any(mask.any() for mask in masks) and not all(mask.all() for mask in masks)


@pytest.mark.parametrize(("threshold", "least", "most"), [(0.0, 0, 0), (0.3, 0.15, 0.45), (0.5, 0.35, 0.65)])
def test_the_share_of_weakened_tokens_is_the_threshold(bases, train_file, tmp_path, threshold, least, most):
    """Without inner steps a token's probability is uniform, and it is weakened if it is below the threshold."""
    run = train(bases["bert"], train_file, tmp_path / "run", threshold=threshold, inner_steps=0, max_steps=1)
    share = np.concatenate(weakened(run), axis=1).mean()
    assert least <= share <= most


def test_a_seed_fixes_the_masks_and_the_first_run_is_the_default(run):
    first = weakened(run)
    torch.manual_seed(1)
    for mask, again in zip(first, weakened(run / "seed-5"), strict=True):
        np.testing.assert_array_equal(mask, again)
    others = zip(first, weakened(run, seed=1), strict=True)
    assert not all(np.array_equal(mask, other) for mask, other in others)


def test_the_newest_checkpoint_is_used(run, tmp_path):
    """A checkpoint whose projection is zero has no gradient: the masks stay random, and the picture differs."""
    damaged = tmp_path / "run"
    shutil.copytree(run, damaged)
    newest = damaged / "seed-5" / "checkpoints" / "step-00000002" / "model.safetensors"
    state = load_file(newest)
    state["projection.dense.weight"].zero_()
    save_file(state, newest)
    learned = zip(weakened(run), weakened(damaged), strict=True)
    assert not all(np.array_equal(mask, other) for mask, other in learned)


def test_each_view_has_the_tokens_of_its_template(bases, train_file, tmp_path):
    prompts = load_recipe("l2pcsr-prompt-roberta-base").model["prompts"]
    prompt = {"pooling": "prompt", "prompts": prompts, "denoise": "train", "weakening": "continuous"}
    run = train(bases["roberta"], train_file, tmp_path / "prompted", **prompt)
    first, second = weakened_tokens(run, SENTENCES)[SENTENCES[1]]
    assert "".join(first.tokens) == "<s>Thissentence:'adog'means<mask>.</s>"
    assert "".join(second.tokens) == "<s>Thesentence:'adog'means<mask>.</s>"
    assert 0 < first.weakened[:, 1:-1].mean() < 1


def test_the_command_writes_a_png(run, tmp_path, capsys):
    out = tmp_path / "weakened.png"
    main(["weakened", str(run), "--sentences", *SENTENCES, "--out", str(out)])
    assert capsys.readouterr().out == f"{out}\n"
    height, width, _ = imread(out).shape
    assert height > 500 and width > 500


def test_weakened_tokens_are_grey_in_the_picture(tmp_path):
    """Twice as many weakened tokens are twice as grey. A dollar sign does not start mathematics."""

    def grey(share):
        mask = np.zeros((3, 12))
        mask[:, : int(12 * share)] = 1
        views = [WeakenedView(["$x", "$_^", *"abcdefghij"], mask)] * 2
        draw_weakened_tokens({"costs $5 or $6_^": views}, tmp_path / "picture.png")
        red, green, blue, _ = np.moveaxis(imread(tmp_path / "picture.png"), -1, 0)
        assert np.array_equal(red, green) and np.array_equal(green, blue)
        return ((red > 0.42) & (red < 0.48)).sum()

    background = grey(0)
    assert grey(0.5) - background == pytest.approx((grey(1) - background) / 2, rel=0.05)


def test_a_recipe_without_some_of_its_keys_is_refused(bases, train_file, tmp_path):
    """They would have their defaults, with which the run was not trained."""
    run = train(bases["bert"], train_file, tmp_path / "run", threshold=0.3, max_steps=1)
    keys = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    del keys["threshold"]
    (run / "recipe.yaml").write_text(yaml.safe_dump(keys), encoding="utf-8")
    assert "was written with another recipe; undo the change" in refusal(weakened_tokens, run, SENTENCES)


def test_runs_without_token_masks_are_refused_in_one_line(run, bases, train_file, tmp_path):
    assert "is not a run: it has no recipe.yaml" in refusal(weakened_tokens, tmp_path / "absent", SENTENCES)
    assert "two or more different ones" in refusal(weakened_tokens, run, ["the cat", "the cat"])
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    text = (run / "recipe.yaml").read_text(encoding="utf-8")
    (waiting / "recipe.yaml").write_text(text, encoding="utf-8")
    assert f"{waiting / 'seed-5'} has no complete checkpoint yet" in refusal(weakened_tokens, waiting, SENTENCES)
    (waiting / "recipe.yaml").write_text(
        text.replace("token_mask: true", "") + "token_mask: false\n", encoding="utf-8"
    )
    assert "has no token masks; give a run of l2pcsr" in refusal(weakened_tokens, waiting, SENTENCES)
    simcse = train(bases["bert"], train_file, tmp_path / "simcse", method="simcse")
    line = refusal(weakened_tokens, simcse, SENTENCES)
    assert "has no token masks; give a run of l2pcsr" in line and "this is a run of simcse" in line
