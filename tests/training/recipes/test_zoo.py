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


# What the authors' code did where the paper is silent or says something else: recipe, key, value, and the source that
# the recipe names beside it. The code was read at these commits: yym6472/ConSERT 82a22b1, FreddeFrallan/
# Contrastive-Tension 5ee9b2d, bohanli/BERT-flow 9f79ed1, yanzhangnlp/IS-BERT b7d4d5c, voidism/DiffCSE fa1e2e8.
SBERT_TRAINER = {
    "optimizer": ("adamw-uncorrected", "release: AdamW without bias correction"),
    "weight_decay": (0.01, "release"),
    "adam_epsilon": (1e-6, "release"),
    "warmup_ratio": (0.1, "section"),
}
CONSERT = {
    **SBERT_TRAINER,
    "training_pooling": ("mean", "release: the last layer in training"),
    "pooling": ("last2_mean", "section 4.1"),
    "batch_size": (96, "release"),
    "max_length": (64, "release"),
}
ON_WIKIPEDIA = {**CONSERT, "dataset_file": ("wiki1m_for_simcse.txt", "DiffAug, appendix C")}
JOINT = {
    **ON_WIKIPEDIA,
    "nli_weight": (pytest.approx(1 / 0.3, abs=0.01), "adds both directions"),
    "first_view": ("none", "release"),
    "second_view": ("token_cutoff", "release"),
    "cutoff_rate": (0.1, "release"),
}
FLOW = {
    "pooling": ("first_last_mean", "issues 11 and 16"),
    "flow_start": ("random", "release: the start from data is written, but never run"),
    "flow_dropout": (True, "release"),
    "flow_optimizer": (
        "released",
        "release: no bias correction, weight decay 0.01, epsilon 1e-6, clipping to 1, 32 pairs",
    ),
}
AS_RELEASED = {
    "consert-bert-base-uncased": {
        **CONSERT,
        "dataset": ("sts-sentences", "89,192 texts of the seven STS data sets"),
        "shuffle_special_tokens": (True, "release: the positions of [CLS] and [SEP] too"),
        "patience": (10, "release"),
        "dropout": (0.0, "release"),
        "epochs": (10, "release"),
    },
    "consert-joint-bert-base-uncased": JOINT,
    "consert-sup-joint-bert-base-uncased": JOINT,
    "consert-sup-unsup-bert-base-uncased": {
        **ON_WIKIPEDIA,
        "first_view": ("none", "release, this setting"),
        "second_view": ("feature_cutoff", "release, this setting"),
        "cutoff_rate": (0.1, "release, this setting"),
        "learning_rate": (5e-7, "release, this setting"),
        "epochs": (1, "25 passes"),
        "patience": (10, "release"),
    },
    "contrastive-tension-bert-base-uncased": {
        "dropout": (0.0, "release: its forward passes in training are those of inference"),
        "optimizer": ("rmsprop", "release: that of Keras"),
        "rmsprop_alpha": (0.9, "the default of Keras"),
        "negative_pairs": ("others", "release: of two other sentences"),
        "batch_size": (30, "release: 16 pairs, 2 of one sentence and 14 of two others"),
        "lr_scheduler": ("stepped", "release"),
        "lr_boundaries": ([500, 1000, 1500, 2000], "release"),
        "lr_factors": ([0.8, 0.6, 0.4, 0.2], "release: 8e-6, 6e-6, 4e-6 and 2e-6"),
    },
    "flow-bert-base-uncased": {**FLOW, "text_columns": (["sent0", "sent1", "hard_neg"], "release: both sides")},
    "flow-stsb-bert-base-uncased": FLOW,
    "isbert-bert-base-uncased": {
        **SBERT_TRAINER,
        "adam_epsilon": (1e-7, "1e-6 in its first two days"),
        "learning_rate": (2e-6, "5e-6 in its first two days"),
        "warmup_ratio": (0.1, "release"),
        "activation": ("none", "release; paper, equation 1: relu"),
    },
    "sbert-nli-bert-base-uncased": SBERT_TRAINER,
    "whitening-bert-base-uncased": {"whitening": (768, "SimCSE: all dimensions; paper, section 4.2: 256")},
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in AS_RELEASED.items() for key in keys])
def test_a_baseline_trains_as_its_authors_did(name, key):
    value, source = AS_RELEASED[name][key]
    recipe = load_recipe(name).to_dict()
    about, reasons = comments(recipe_files()[name].read_text(encoding="utf-8"))
    assert recipe[key] == value
    assert source in reasons[key]
    assert "release" in about or "SimCSE =" in about


def test_only_consert_s_unsupervised_setting_has_no_dropout():
    dropouts = {name: load_recipe(name).dropout for name in AS_RELEASED if name.startswith("consert")}
    assert dropouts.pop("consert-bert-base-uncased") == 0 and {*dropouts.values()} == {None}


IMPORTING = ("simcse", "promptbert", "diffaug", "l2pcsr", "diffcse", "sgopt")


@pytest.mark.parametrize("paper", IMPORTING)
def test_a_recipe_says_which_adamw_its_release_imports(paper):
    """The releases of six papers import transformers 4's; the zoo's recipes have torch's, and say what it changes."""
    names = [name for name in recipe_names() if name.startswith(f"{paper}-") and "qwen3" not in name]
    files = [recipe_files()[name] for name in names]
    for file in files:
        _, reasons = comments(file.read_text(encoding="utf-8"))
        assert load_recipe(file.stem).optimizer == "adamw"
        assert "release: adamw-transformers4; update 1 differs by 9 %" in reasons["optimizer"], file
    assert len(files) > 1


@pytest.mark.parametrize(
    ("method", "key", "source"),
    [
        ("prdsimcse", "positive_prefix", "paper, table 9"),
        ("prdsimcse", "negative_prefix", "paper, table 10"),
        ("sgopt", "adam_betas", "paper, table 8"),
        ("sgopt", "eval_steps", "paper, table 8"),
        ("sgopt", "endurance", "paper, table 8"),
        ("sgopt", "regularizer_weight", "the release's sum includes the poolers"),
        ("diffcse", "epochs", "the release's script too, since 2022-04-17 (1 before)"),
    ],
)
def test_the_source_of_a_value_is_where_it_is(method, key, source):
    for file in (METHOD_FOLDERS / method / "recipes").glob(f"{method}-*.yaml"):
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
