"""Cards say what was measured: every number on them and in the README comes from a results file."""

import json
from pathlib import Path

import pytest

from csezoo.training.evaluation import AVERAGE, average
from csezoo.training.model_card import model_card
from csezoo.training.recipes import load_recipe
from csezoo.training.sts import DEV_TASK

ROOT = Path(__file__).parents[1]
RUNS = sorted(path.parent for path in (ROOT / "model_cards").glob("*/results.json"))


def read(run):
    return json.loads((run / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_card_is_made_from_recipe_and_results(run):
    results = read(run)
    own = [result for result in results["results"] if result["seed"] == results["best_seed"]]
    card = model_card(load_recipe(str(run / "recipe.yaml")), own, results["summary"])
    assert (run / "README.md").read_text(encoding="utf-8") == str(card)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_readme_quotes_the_results(run):
    summary = {entry["task"]: f"{entry['mean']:.2f} ± {entry['sd']:.2f}" for entry in read(run)["summary"]}
    row = f"| [`{run.name}`](model_cards/{run.name}) | {summary['STSBenchmark-dev']} | {summary[AVERAGE]} |"
    assert row in (ROOT / "README.md").read_text(encoding="utf-8")


def test_there_are_results():
    assert {"simcse-minilm", "simcse-sup-minilm", "prdsimcse-minilm", "diffcse-minilm"} <= {run.name for run in RUNS}


@pytest.mark.parametrize(
    "file", sorted((ROOT / "model_cards" / "untrained").glob("*.json")), ids=lambda file: file.name
)
def test_readme_quotes_the_untrained_encoders(file):
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    (dev,) = [result["value"] for result in results if result["task"] == DEV_TASK]
    pooling = results[0]["pooling"]
    row = f"| [untrained, {pooling}](model_cards/untrained/{file.name}) | {dev:.2f} | {average(results):.2f} |"
    assert row in (ROOT / "README.md").read_text(encoding="utf-8")
