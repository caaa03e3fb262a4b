"""`results.csv` has a line for each model, task and seed, and `list_models` finds models in it."""

import csv
import shutil
import statistics
from pathlib import Path

import pytest

from csezoo.training import list_models
from csezoo.training.cards.entries import entries
from csezoo.training.cards.index import write_cards
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.tasks.names import STS_TASKS
from csezoo.training.files import read_json, write_json
from csezoo.training.recipes import recipe_names
from csezoo.training.recipes.released import released

CARDS = Path(__file__).parents[3] / "model_cards"


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """The cards of two runs and an encoder without training. The size of some models is known."""
    directory = tmp_path_factory.mktemp("cards")
    for name in ("simcse-minilm", "diffaug-minilm", "untrained"):
        shutil.copytree(CARDS / name, directory / name)
    shapes = {"minilm-mlm": {"bytes": 90, "cpu_ms_per_sentence": 1.25}, "roberta-base": {"bytes": 500}}
    write_json(directory / "serving.json", {"shapes": shapes})
    write_cards(directory)
    return directory


def test_there_is_a_line_for_each_task_and_seed_with_the_measured_value(cards):
    with (cards / "results.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["model"] == "simcse-minilm"]
    measured = read_json(cards / "simcse-minilm" / "results.json")["results"]
    expected = {(result["task"], str(result["seed"])): result["value"] for result in measured}
    for seed in ("1", "2", "3"):
        expected["STS average", seed] = statistics.mean(expected[task, seed] for task in STS_TASKS)
    found = {(line["task"], line["seed"]): float(line["value"]) for line in lines}
    assert found.keys() == expected.keys() and len(lines) == len(found)
    assert all(found[key] == pytest.approx(expected[key], abs=5e-5) for key in expected)
    assert {line["source"] for line in lines} == {"csezoo"}
    assert {(line["bytes"], line["cpu_ms_per_sentence"], line["status"]) for line in lines} == {
        ("90", "1.25", "measured here")
    }


def test_a_published_score_has_no_seed_and_names_its_table(cards):
    with (cards / "results.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["model"] == "sgopt-bert-base-uncased"]
    (average,) = [line for line in lines if line["task"] == "STS average"]
    assert (average["value"], average["deviation"], average["seed"]) == ("74.62", "0.25", "")
    assert average["source"] == "Kim et al. 2021 (SG-OPT), table 1" and average["status"] == "recipe only"


def test_every_model_is_listed_with_the_mean_over_its_seeds(cards):
    models = {model.name: model for model in list_models(cards=cards)}
    assert len(models) == 2 + 2 + len(recipe_names()) + len(released())
    summary = read_json(cards / "simcse-minilm" / "results.json")["summary"]
    for entry in summary[:-1]:
        assert models["simcse-minilm"].scores[entry["task"]] == pytest.approx(entry["mean"], abs=5e-5)
        assert models["simcse-minilm"].deviations[entry["task"]] == pytest.approx(entry["sd"], abs=1e-4)
    assert models["quickstart"].scores == {} and models["quickstart"].base_model == ""


def test_seeds_that_were_trained_on_two_devices_all_count(tmp_path):
    path = shutil.copytree(CARDS / "simcse-minilm", tmp_path / "simcse-minilm") / "results.json"
    report = read_json(path)
    for result in report["results"]:
        result["device"] = "of another machine" if result["seed"] == report["results"][0]["seed"] else "cpu"
    write_json(path, report)
    (entry,) = [entry for entry in entries(tmp_path) if entry.model.name == "simcse-minilm"]
    assert len({line.seed for line in entry.lines if line.task == "STS12"}) == 3


def test_a_run_that_was_measured_again_has_its_newest_scores_in_the_card_too(tmp_path):
    path = shutil.copytree(CARDS / "simcse-minilm", tmp_path / "run") / "results.json"
    report = read_json(path)
    report["results"] += [{**result, "value": 12.34, "dtype": "bfloat16"} for result in report["results"]]
    write_json(path, report)
    (entry,) = [entry for entry in entries(tmp_path) if entry.model.name == "run"]
    assert {line.value for line in entry.lines} == {12.34} and entry.card.text.count("| STS12 |") == 1


def test_an_encoder_that_was_measured_again_has_its_newest_scores(tmp_path):
    (tmp_path / "untrained").mkdir()
    report = read_json(CARDS / "untrained" / "minilm-cls.json")
    mean = read_json(CARDS / "untrained" / "minilm-mean.json")["results"]
    report["results"] += mean
    write_json(tmp_path / "untrained" / "minilm.json", report)
    (entry,) = [entry for entry in entries(tmp_path) if entry.model.status == "measured here"]
    assert entry.model.name == "minilm-mlm, mean" and not entry.model.deviations
    assert all(entry.model.scores[result["task"]] == result["value"] for result in mean)


def names(cards, **chosen):
    return [model.name for model in list_models(cards=cards, **chosen)]


def test_models_are_chosen_by_method_backbone_training_and_size(cards):
    assert names(cards, trained=True) == ["simcse-minilm", "diffaug-minilm"], "the best one first"
    assert names(cards, method="promptbert", trained=True) == ["diffaug-minilm"]
    assert names(cards, backbone="minilm-mlm", trained=False) == ["minilm-mlm, cls", "minilm-mlm, mean"]
    small = list_models(max_bytes=90, cards=cards)
    assert {model.bytes for model in small} == {90} and small[0].cpu_ms_per_sentence == 1.25
    assert names(cards, max_bytes=89) == [], "a model of unknown size may be larger"
    assert all(model.cpu_ms_per_sentence is None for model in list_models(backbone="roberta-base", cards=cards))


def test_the_command_lists_the_committed_models(cards, capsys):
    main(["models", "--trained", "--cards", str(cards)])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "name" and len(lines) == 2
    summary = read_json(cards / "simcse-minilm" / "results.json")["summary"]
    *_, size, time, _, _, deviation, status, where = lines[0].split()
    assert [size, time, deviation] == ["0", "1.25", f"{summary[-1]['sd']:.2f}"]
    assert [status, where] == ["measured", "here"]
    main(["models", "--backbone", "roberta-large"])
    assert "princeton-nlp/sup-simcse-roberta-large " in capsys.readouterr().out


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "results.csv").write_text("model,task\na,b\n", encoding="utf-8")
    with pytest.raises(UserError, match="is not a file of csezoo cards"):
        list_models(cards=tmp_path)
