"""Combined methods: which combine, which do not and why, and complete runs."""

import pytest

from csezoo.modeling import METHODS, method
from csezoo.modeling.contrastive.published import load_published
from csezoo.training.errors import UserError
from csezoo.training.loop.weakened import weakened_tokens
from csezoo.training.recipes import load_recipe, make_recipe, method_keys
from tests.conftest import SENTENCES
from tests.training.runs import lines, train

PROMPT = {"pooling": "prompt", "prompts": ['This sentence of "{sentence}" means{mask}.'], "denoise": "train"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("l2pcsr+diffaug", "l2pcsr and diffaug cannot be combined: both change the views"),
        ("prdsimcse+sgopt", "prdsimcse and sgopt cannot be combined: both change the data"),
        ("diffcse+sgopt", "diffcse and sgopt cannot be combined: both change the auxiliary"),
        ("diffcse+diffcse", "'diffcse' is given twice; give it once"),
        ("diffcse+simsce", "'simsce' must be one of simcse"),
    ],
)
def test_the_error_says_why_methods_cannot_be_combined(name, line):
    with pytest.raises(UserError) as error:
        make_recipe({"method": name})
    assert line in str(error.value)


@pytest.mark.parametrize(
    "name", ["l2pcsr+diffcse", "prdsimcse+l2pcsr", "diffaug+diffcse", "prdsimcse+diffcse+diffaug"]
)
def test_a_combination_has_all_keys_and_is_served_as_the_method_of_its_views(name):
    config, serving, training = method(name)
    names = name.split("+")
    (of_views,) = [one for one in names if "views" in METHODS[one][2].seams]
    assert serving is training.serving_class is METHODS[of_views][1]
    assert config().model_type == of_views and config.__name__ == METHODS[of_views][0].__name__
    for one in names:
        assert issubclass(training, METHODS[one][2])
        assert method_keys(one).keys() <= method_keys(name).keys()


def test_the_order_of_the_names_does_not_matter():
    assert method("diffcse+l2pcsr")[1] is method("l2pcsr+diffcse")[1]


def test_a_combination_without_a_method_of_the_views_is_served_as_the_first_one():
    assert method("prdsimcse+diffcse")[1] is METHODS["prdsimcse"][1]
    assert method("diffcse+prdsimcse")[1] is METHODS["diffcse"][1]


def test_a_combination_keeps_the_defaults_of_its_methods():
    config = method("prdsimcse+diffcse")[0](rtd_mask_ratio=0.2)
    assert (config.projection, config.projection_at_test, config.rtd_mask_ratio) == ("batchnorm", True, 0.2)


@pytest.mark.parametrize("change", [{"predicted_sentence": "next"}, {"edited_view": "negative"}])
def test_an_edited_view_cannot_be_combined_with_text_prefixes(change):
    with pytest.raises(ValueError, match="another method makes the texts of the views"):
        method("prdsimcse+diffcse")[0](**change)


@pytest.mark.parametrize("edited_view", ["positive", "negative"])
@pytest.mark.parametrize("of_pairs", ["consert", "contrastive_tension"])
def test_an_edited_view_cannot_be_combined_with_a_method_of_pairs(of_pairs, edited_view):
    configure = method(f"{of_pairs}+diffcse")[0]
    assert configure().edited_view == "none"
    with pytest.raises(ValueError, match=f"edited_view: {of_pairs} takes two views of a sentence; set edited_view: "):
        configure(edited_view=edited_view)


def test_l2pcsr_diffcse_and_a_prompt_train_together(tiny, bases, tmp_path):
    """l2pcsr + diffcse + prompt is a run, not a fork."""
    train(tiny(method="l2pcsr+diffcse", generator=str(bases["bert"]), max_steps=2, inner_steps=1, **PROMPT))
    logged = [line for line in lines(tmp_path / "run") if "loss" in line]
    assert all({"contrastive", "rtd"} <= line.keys() for line in logged)
    best = tmp_path / "run" / "best"
    model = load_published(best)
    assert model.config.csezoo["method"] == "l2pcsr"
    assert {name.split(".")[0] for name in model.state_dict()} == {"backbone"}, "the encoder alone"
    assert "L2P-CSR" in (best / "README.md").read_text() and "DiffCSE" in (best / "README.md").read_text()
    assert load_recipe(str(tmp_path / "run" / "recipe.yaml")).method == "l2pcsr+diffcse"
    assert list(weakened_tokens(tmp_path / "run", SENTENCES[:2])) == SENTENCES[:2], "a picture of it can be drawn"


def test_prdsimcse_and_l2pcsr_train_together(tiny, tmp_path):
    results = train(tiny(method="prdsimcse+l2pcsr", max_steps=2, inner_steps=1, denominator="own"))
    assert results["training"]["updates"] == 2
    assert load_published(tmp_path / "run" / "best").config.csezoo["method"] == "l2pcsr"


def test_diffaug_and_diffcse_train_together_in_two_stages(tiny, bases, triplets, tmp_path):
    changes = {**triplets, "nli_steps": 2, "nli_batch_size": 8, "prefix_length": 2, **PROMPT}
    train(tiny(method="diffaug+diffcse", generator=str(bases["bert"]), max_steps=2, **changes))
    logged = [line for line in lines(tmp_path / "run") if "loss" in line]
    assert ["nli" in line for line in logged] == [True, True, False, False]
    assert ["rtd" in line for line in logged] == [False, False, True, True]
    assert load_published(tmp_path / "run" / "best").config.csezoo["method"] == "diffaug"
