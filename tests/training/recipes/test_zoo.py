"""The recipes of the zoo: what they set is what the papers published, with its reason beside it."""

import pytest

from csezoo.modeling import METHODS
from csezoo.training.recipes import RECIPES, RELEASED, comments, dump_recipe, load_recipe, recipe_files, recipe_names
from csezoo.training.recipes.reading import read_values

UNSUPERVISED, SUPERVISED = None, ["sent0", "sent1", "hard_neg"]
# name: batch, learning rate, epochs, projection at test, columns. Gao et al. 2021, appendix A; Jiang et al. 2022.
PUBLISHED = {
    "simcse-bert-base-uncased": (64, 3e-5, 1, False, UNSUPERVISED),
    "simcse-bert-large-uncased": (64, 1e-5, 1, False, UNSUPERVISED),
    "simcse-roberta-base": (512, 1e-5, 1, False, UNSUPERVISED),
    "simcse-roberta-large": (512, 3e-5, 1, False, UNSUPERVISED),
    "simcse-sup-bert-base-uncased": (512, 5e-5, 3, True, SUPERVISED),
    "simcse-sup-bert-large-uncased": (512, 1e-5, 3, True, SUPERVISED),
    "simcse-sup-roberta-base": (512, 5e-5, 3, True, SUPERVISED),
    "simcse-sup-roberta-large": (512, 1e-5, 3, True, SUPERVISED),
    "promptbert-bert-base-uncased": (256, 1e-5, 1, False, UNSUPERVISED),
    "promptbert-roberta-base": (256, 1e-5, 1, False, UNSUPERVISED),
    "promptbert-sup-bert-base-uncased": (512, 5e-5, 3, True, SUPERVISED),
    "promptbert-sup-bert-large-uncased": (512, 1e-5, 3, True, SUPERVISED),
    "promptbert-sup-roberta-base": (512, 5e-5, 3, True, SUPERVISED),
    "promptbert-sup-roberta-large": (512, 1e-5, 3, True, SUPERVISED),
}


def test_the_name_of_a_recipe_is_unique_and_says_its_directory():
    files = [file for file in RECIPES.rglob("*.yaml") if file != RELEASED]
    assert sorted(file.stem for file in files) == recipe_names(), "two files of one name would hide one another"
    for file in files:
        assert file.parent.name in ("baselines", "recipes") or file.stem.startswith(f"{file.parent.name}-")
    assert {file.stem for file in files if file.parent == RECIPES} == {"quickstart", "quickstart-simcse"}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_configures_its_method(name):
    recipe = load_recipe(name)
    assert (recipe.name, recipe.recipe) == (name, name)
    prompted = {"prompt_token_ids": [[[0], [1]]] * 2} if recipe.model["pooling"] == "prompt" else {}
    METHODS[recipe.method][0](**recipe.model, **prompted)


@pytest.mark.parametrize("name", PUBLISHED)
def test_hyperparameters_are_the_published_ones(name):
    recipe = load_recipe(name)
    kept = recipe.model["projection_at_test"]
    assert (recipe.batch_size, recipe.learning_rate, recipe.epochs, kept, recipe.text_columns) == PUBLISHED[name]
    projection = "mlm_transform" if name.startswith("promptbert-sup-bert") else "tanh"
    assert (recipe.model["temperature"], recipe.model["projection"]) == (0.05, projection)
    assert (recipe.max_length, recipe.max_grad_norm, recipe.weight_decay) == (32, 1.0, 0.0)
    assert (recipe.lr_scheduler, recipe.warmup_ratio) == ("linear", 0.0)
    assert (recipe.adam_betas, recipe.adam_epsilon) == ([0.9, 0.999], 1e-8)
    assert recipe.base_model.split("/")[1] in name.replace("promptbert-bert", "bert"), "the backbone in the name"
    assert recipe.dataset_file == ("nli_for_simcse.csv" if recipe.text_columns else "wiki1m_for_simcse.txt")


@pytest.mark.parametrize("name", ["consert-joint-bert-base-uncased", "consert-sup-joint-bert-base-uncased"])
def test_the_joint_training_of_consert_has_the_values_of_its_release(name):
    recipe = load_recipe(name)
    assert (recipe.batch_size, recipe.nli_batch_size, recipe.max_length) == (96, 96, 64)
    assert recipe.model["nli_weight"] == pytest.approx(1 / 0.15, abs=0.01)


@pytest.mark.parametrize(
    ("method", "key", "source"),
    [
        ("prdsimcse", "positive_prefix", "paper, table 9"),
        ("prdsimcse", "negative_prefix", "paper, table 10"),
        ("sgopt", "adam_betas", "paper, table 8"),
        ("sgopt", "eval_steps", "paper, table 8"),
        ("sgopt", "endurance", "paper, table 8"),
        ("sgopt", "regularizer_weight", "the release's sum includes the poolers"),
        ("diffcse", "epochs", "the release's script trains 1"),
    ],
)
def test_the_source_of_a_value_is_where_it_is(method, key, source):
    for file in (RECIPES / method).glob("*.yaml"):
        _, reasons = comments(file.read_text(encoding="utf-8"))
        assert source in reasons[key], file


@pytest.mark.parametrize("name", recipe_names())
def test_every_value_has_its_reason_or_source_beside_it(name):
    about, reasons = comments(recipe_files()[name].read_text(encoding="utf-8"))
    speak_for_themselves = {"method", "base_model", "dataset", "text_columns", "nli_dataset", "nli_columns"}
    assert about
    assert not [key for key, reason in reasons.items() if not reason and key not in speak_for_themselves]
    assert reasons.keys() == read_values(recipe_files()[name]).keys()


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_written_and_read_again_is_the_same(name, tmp_path):
    recipe = load_recipe(name, {"seeds": [1, 2], "adam_epsilon": 1e-10, "output_dir": "runs/Überblick"})
    dump_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(str(tmp_path / "recipe.yaml")) == recipe
