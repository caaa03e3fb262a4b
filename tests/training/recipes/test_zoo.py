"""The recipes of the zoo: what they set is what the papers published, with its reason beside it."""

from pathlib import Path

import pytest

from csezoo.modeling import METHODS
from csezoo.training.recipes import METHOD_FOLDERS, dump_recipe, load_recipe, recipe_names
from csezoo.training.recipes.help import comments
from csezoo.training.recipes.reading import read_values, recipe_files

SUPERVISED = ["sent0", "sent1", "hard_neg"]


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


# What the papers' recipes set. Gao et al. 2021, appendix A; Jiang et al. 2022; Kim et al. 2021, table 8; Zhou et al.
# 2023, appendix B; Wang and Lv 2024; Wang and Lu 2022, table 5; Chuang et al. 2022, tables 12 and 13.
WIKI = {"dataset_file": "wiki1m_for_simcse.txt", "text_columns": None}
SGOPT = {"learning_rate": 5e-5, "batch_size": 16, "epochs": 1, "max_length": 128, "weight_decay": 0.01}
SGOPT |= {"adam_betas": [0.9, 0.9], "adam_epsilon": 1e-6, "warmup_ratio": 0.1, "eval_steps": 50, "endurance": 10}
SGOPT |= {"seeds": [1, 2, 3, 4, 1234, 2345, 3456, 7890], "variant": "opt3", "view_pooling": "max", "pooling": "cls"}
SGOPT |= {"regularizer_weight": 0.1, "projection": "gelu", "projection_size": 4096, "temperature": 0.01}
L2PCSR = {**WIKI, "batch_size": 512, "epochs": 1, "eval_steps": 150, "max_length": 32, "temperature": 0.05}
L2PCSR |= {"threshold": 0.05, "token_step_size": 0.5, "feature_step_size": 0.5, "token_update": "l2"}
L2PCSR |= {"inner_steps": 4, "weakened_layers": 3, "weakening": "binary", "feature_mask_scope": "row"}
L2PCSR |= {"attend_padding": False, "projection": "tanh", "projection_at_test": False}
PRDSIMCSE = {"batch_size": 64, "epochs": 3, "weight_decay": 0.01, "eval_steps": 250, "projection_at_test": True}
# 128 labelled triplets an update of the first stage.
SEMI = {**WIKI, "learning_rate": 1e-5, "batch_size": 256, "gradient_accumulation_steps": 1, "epochs": 1}
SEMI |= {"nli_learning_rate": 1e-3, "nli_batch_size": 128, "nli_dataset_file": "nli_for_simcse.csv", "eval_steps": 50}
SEMI |= {"prefix_length": 8, "nli_classes": 2, "nli_decay_steps": None}
SUP = {"dataset_file": "nli_for_simcse.csv", "text_columns": SUPERVISED, "learning_rate": 5e-5, "batch_size": 128}
SUP = SEMI | SUP | {"gradient_accumulation_steps": 4, "epochs": 3, "nli_steps": 1250, "nli_batch_size": 32}
# Batch and learning rate of the unsupervised recipes; the supervised ones have 512.
RATES = {"bert-base-uncased": (64, 3e-5), "bert-large-uncased": (64, 1e-5), "roberta-base": (512, 1e-5)}
RATES |= {"roberta-large": (512, 3e-5)}
SIMCSE = {"max_length": 32, "max_grad_norm": 1.0, "weight_decay": 0.0, "lr_scheduler": "linear", "warmup_ratio": 0.0}
SIMCSE |= {"adam_betas": [0.9, 0.999], "adam_epsilon": 1e-8, "temperature": 0.05, "projection": "tanh"}
UNSUPERVISED = {**SIMCSE, **WIKI, "epochs": 1, "projection_at_test": False}
LABELLED = {**SIMCSE, "dataset_file": "nli_for_simcse.csv", "text_columns": SUPERVISED, "batch_size": 512, "epochs": 3}
LABELLED |= {"projection_at_test": True}
DIFFCSE = {**UNSUPERVISED, "epochs": 2, "eval_steps": 125, "projection": "batchnorm", "rtd_reduction": "mean"}
DIFFCSE |= {"condition_on": "projection", "generator_sampling": "argmax", "generator_positions": "all"}
DIFFCSE |= {"generator_dropout": True}
# Batch, learning rate, masking ratio, λ.
EDITS = {
    "bert-base-uncased-sts": (64, 7e-6, 0.30, 0.005),
    "roberta-base-sts": (64, 1e-5, 0.20, 0.005),
    "bert-base-uncased-transfer": (64, 2e-6, 0.15, 0.05),
    "roberta-base-transfer": (128, 3e-6, 0.15, 0.05),
}
BACKBONES = ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")
PAPERS = {f"sgopt-{name}": SGOPT for name in (*BACKBONES, "mbert")}
PAPERS |= {"prdsimcse-bert-base-uncased": PRDSIMCSE | {"learning_rate": 4e-5}}
PAPERS |= {"prdsimcse-roberta-base": PRDSIMCSE | {"learning_rate": 2e-5}}
for backbone in BACKBONES:
    rate = {"learning_rate": 1e-5 if backbone == "roberta-base" else 3e-5}
    prompt = {"prompts": load_recipe(f"promptbert-{backbone.replace('large', 'base')}").model["prompts"]}
    PAPERS[f"l2pcsr-{backbone}"] = L2PCSR | rate | {"pooling": "cls"}
    PAPERS[f"l2pcsr-prompt-{backbone}"] = L2PCSR | rate | prompt | {"pooling": "prompt", "denoise": "train"}
for backbone in ("bert-base-uncased", "roberta-base"):
    prompt = {"prompts": load_recipe(f"promptbert-{backbone}").model["prompts"][:1]}
    PAPERS[f"diffaug-{backbone}-semi"] = SEMI | prompt | {"nli_steps": 2000, "nli_weight": 0.0}
    PAPERS[f"diffaug-{backbone}-semi-aux"] = SEMI | prompt | {"nli_steps": 1500, "nli_weight": 1e-3}
    PAPERS[f"diffaug-{backbone}-sup"] = SUP | prompt | {"nli_weight": 0.0}


for backbone, (batch_size, learning_rate) in RATES.items():
    supervised = {"learning_rate": 1e-5 if "large" in backbone else 5e-5}
    of_prompts = {"projection": "mlm_transform" if backbone.startswith("bert") else "tanh"}
    PAPERS[f"simcse-{backbone}"] = UNSUPERVISED | {"batch_size": batch_size, "learning_rate": learning_rate}
    PAPERS[f"simcse-sup-{backbone}"] = LABELLED | supervised
    PAPERS[f"promptbert-sup-{backbone}"] = LABELLED | supervised | of_prompts
    if "base" in backbone:
        PAPERS[f"promptbert-{backbone}"] = UNSUPERVISED | {"batch_size": 256, "learning_rate": 1e-5}
for name, (batch_size, learning_rate, ratio, weight) in EDITS.items():
    edits = {"rtd_mask_ratio": ratio, "rtd_weight": weight, "batch_size": batch_size, "learning_rate": learning_rate}
    generator = "distilbert/distilroberta-base" if name.startswith("roberta") else "distilbert/distilbert-base-uncased"
    PAPERS[f"diffcse-{name}"] = DIFFCSE | edits | {"generator": generator}


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


PUBLISHED = PAPERS | AS_RELEASED


@pytest.mark.parametrize("name", PUBLISHED)
def test_values_are_those_of_paper_and_release(name):
    recipe = load_recipe(name)
    prompted = {"prompt_token_ids": [[[0], [1]]] * 2} if recipe.model.get("pooling") == "prompt" else {}
    config = METHODS[recipe.method][0](**recipe.model, **prompted)  # with the defaults of what the recipe leaves out
    values = config.to_dict() | recipe.to_dict()
    assert {key: values[key] for key in PUBLISHED[name]} == PUBLISHED[name]
    assert recipe.base_model.split("/")[1] in name.replace("mbert", "bert-base-multilingual-cased"), "the backbone"


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
