"""The recipes of the zoo: what they set is what the papers published, with its reason beside it."""

from pathlib import Path

import pytest

from csezoo.modeling import METHODS
from csezoo.training.recipes import METHOD_FOLDERS, comments, dump_recipe, load_recipe, recipe_files, recipe_names
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


def test_the_name_of_a_recipe_is_unique():
    files = [file.stem for file in METHOD_FOLDERS.rglob("recipes/*.yaml")]
    assert sorted(files) == recipe_names(), "two files of one name would hide one another"


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_configures_its_method(name):
    recipe = load_recipe(name)
    assert (recipe.name, recipe.recipe) == (name, name)
    prompted = {"prompt_token_ids": [[[0], [1]]] * 2} if recipe.model.get("pooling") == "prompt" else {}
    METHODS[recipe.method][0](**recipe.model, **prompted)


def test_the_readme_names_every_recipe():
    page = Path(__file__).parents[3].joinpath("README.md").read_text(encoding="utf-8")
    assert [name for name in recipe_names() if f"`{name}`" not in page] == []


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


# What the authors' code did where the paper is silent or says something else. The code was read at these commits:
# yym6472/ConSERT 82a22b1, FreddeFrallan/Contrastive-Tension 5ee9b2d, bohanli/BERT-flow 9f79ed1, yanzhangnlp/IS-BERT
# b7d4d5c, voidism/DiffCSE fa1e2e8.
SBERT_TRAINER = {"optimizer": "adamw-uncorrected", "weight_decay": 0.01, "adam_epsilon": 1e-6, "warmup_ratio": 0.1}
CONSERT = {**SBERT_TRAINER, "training_pooling": "mean", "pooling": "last2_mean", "batch_size": 96, "max_length": 64}
ON_WIKIPEDIA = {**CONSERT, "dataset_file": "wiki1m_for_simcse.txt"}
JOINT = {**ON_WIKIPEDIA, "nli_weight": pytest.approx(1 / 0.3, abs=0.01), "first_view": "none"}
JOINT |= {"second_view": "token_cutoff", "cutoff_rate": 0.1}
ALONE = {**CONSERT, "dataset": "sts-sentences", "shuffle_special_tokens": True, "patience": 10, "dropout": 0.0}
FEATURES = {**ON_WIKIPEDIA, "first_view": "none", "second_view": "feature_cutoff", "cutoff_rate": 0.1, "epochs": 1}
TENSION = {"dropout": 0.0, "optimizer": "rmsprop", "rmsprop_alpha": 0.9, "negative_pairs": "others", "batch_size": 30}
TENSION |= {"lr_scheduler": "stepped", "lr_boundaries": [500, 1000, 1500, 2000], "lr_factors": [0.8, 0.6, 0.4, 0.2]}
FLOW = {"pooling": "first_last_mean", "flow_start": "random", "flow_dropout": True, "flow_optimizer": "released"}
AS_RELEASED = {
    "consert-bert-base-uncased": {**ALONE, "epochs": 10},
    "consert-joint-bert-base-uncased": JOINT,
    "consert-sup-joint-bert-base-uncased": JOINT,
    "consert-sup-unsup-bert-base-uncased": {**FEATURES, "learning_rate": 5e-7, "patience": 10},
    "contrastive-tension-bert-base-uncased": TENSION,
    "flow-bert-base-uncased": {**FLOW, "text_columns": ["sent0", "sent1", "hard_neg"]},
    "flow-stsb-bert-base-uncased": FLOW,
    "isbert-bert-base-uncased": {**SBERT_TRAINER, "adam_epsilon": 1e-7, "learning_rate": 2e-6, "activation": "none"},
    "sbert-nli-bert-base-uncased": SBERT_TRAINER,
    "whitening-bert-base-uncased": {"whitening": 768},
}


@pytest.mark.parametrize("name", AS_RELEASED)
def test_a_baseline_trains_as_its_authors_did(name):
    recipe = load_recipe(name).to_dict()
    assert {key: recipe[key] for key in AS_RELEASED[name]} == AS_RELEASED[name]


def test_only_consert_s_unsupervised_setting_has_no_dropout():
    dropouts = {name: load_recipe(name).dropout for name in AS_RELEASED if name.startswith("consert")}
    assert dropouts.pop("consert-bert-base-uncased") == 0 and {*dropouts.values()} == {None}


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
