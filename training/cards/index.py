"""`csezoo cards`: the model cards of all recipes and measured runs, and the index of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCard

from ..errors import UserError, one_line
from ..evaluation.report import AVERAGE, average, tests_only
from ..evaluation.tasks.sts import DEV_TASK
from ..pictures.captions import PICTURES
from ..recipes import Recipe, file_name, load_recipe, recipe_names
from .method_texts import IDEAS, methods
from .model_card import model_card, recipe_card
from .published import TRANSFER_AVERAGE, PublishedRow, comparable, published
from .tables import markdown_table

PAPER = {"paper, STS": AVERAGE, "paper, transfer": TRANSFER_AVERAGE}
COLUMNS = ("name", "method", "base model", "data", "STS-B dev", "STS average", *PAPER, "trained")
IDEAS_AT = "../ideas/"
INTRODUCTION = """# Model cards

A card for every recipe and every measured run, made by `csezoo cards` from recipes, results and the papers' tables; no
number is typed by hand. Scores are Spearman × 100, the average is that of the seven STS tests, and ± is the standard
deviation over seeds. The papers' averages are those of the STS tests and of the seven transfer tasks (accuracy). Runs
on a stand-in encoder are to be read against each other, never against the papers."""


@dataclass
class Entry:
    """A line of the index.

    Args:
        link: where it leads, seen from the index.
        cells: by `COLUMNS`.
        card: `None` for an encoder that was measured as it is.
    """

    link: str
    cells: dict[str, str]
    card: ModelCard | None = None


def write_cards(directory: Path) -> list[Entry]:
    """Write the card of every recipe and every measured run, the pictures of their ideas, and the index.

    Args:
        directory: a directory in it with `recipe.yaml` and `results.json` is a measured run, whose card is written
            beside them; JSON files in one without `recipe.yaml` are results of encoders as they are.

    Raises:
        UserError: one of these files is not what its name says, or the directory cannot be written.
    """
    made = entries(directory)
    rows = [[f"[{e.cells['name']}]({e.link})", *(e.cells.get(column, "") for column in COLUMNS[1:])] for e in made]
    try:
        shutil.copytree(IDEAS, directory / "ideas", dirs_exist_ok=True)
        for entry in made:
            if entry.card:
                entry.card.save(directory / entry.link)
        index = f"{INTRODUCTION}\n\n{markdown_table(list(COLUMNS), *rows)}\n"
        (directory / "README.md").write_text(index, encoding="utf-8")
    except OSError as error:
        raise UserError(f"out: {directory} cannot be written ({one_line(error)})") from error
    return made


def entries(directory: Path) -> list[Entry]:
    """The measured runs, the encoders that were measured as they are, then the recipes that nobody has trained."""
    runs = sorted(file.parent for file in directory.glob("*/results.json"))
    measured = [_measured(run) for run in runs if (run / "recipe.yaml").is_file()]
    encoders = [_encoder(file) for file in sorted(directory.glob("untrained/*.json"))]
    known = {entry.cells["name"] for entry in measured}
    recipes = [_untrained(name) for name in recipe_names() if name not in known]
    return [*measured, *encoders, *recipes]


def _measured(run: Path) -> Entry:
    recipe = load_recipe(str(run / "recipe.yaml"))
    report = _read(run / "results.json")
    try:
        results, summary = report["results"], report.get("summary")
        if summary:
            results = [result for result in results if result["seed"] == report["best_seed"]]
        runs = report.get("runs", [report] if "training" in report else [])
        pictures = [name for name in PICTURES if (run / name).is_file()]
        card = model_card(recipe, results, summary, runs=runs, pictures=pictures, ideas_at=IDEAS_AT)
        cells = {**_described(recipe, run.name), **_scores(results, summary), "trained": "yes"}
    except (KeyError, TypeError) as error:
        raise UserError(f"{run / 'results.json'} is no results file ({one_line(error)})") from error
    cells |= _paper_averages(comparable(recipe.recipe, recipe.method, recipe.base_model))
    return Entry(f"{run.name}/README.md", cells, card)


def _encoder(file: Path) -> Entry:
    report = _read(file)
    try:
        results = [result for result in report["results"] if result["metric"] == "spearman"]
        model = file_name(report["model"])
        cells = {"name": f"{model}, {results[0]['pooling']}", "method": "untrained", "base model": model}
        return Entry(f"{file.parent.name}/{file.name}", {**cells, **_scores(results, None)})
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(f"{file} is no results file ({one_line(error)})") from error


def _untrained(name: str) -> Entry:
    recipe = load_recipe(name)
    cells = {**_described(recipe, name), **_paper_averages(published(name)), "trained": "no"}
    return Entry(f"{name}/README.md", cells, recipe_card(recipe, ideas_at=IDEAS_AT))


def _read(file: Path) -> dict:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is no results file ({one_line(error)})") from error


def _described(recipe: Recipe, name: str) -> dict[str, str]:
    data = recipe.train_file or recipe.dataset_file or recipe.dataset or recipe.nli_file or recipe.nli_dataset
    return {
        "name": name,
        "method": " + ".join(methods(recipe)),
        "base model": file_name(recipe.base_model) if recipe.base_model else "",
        "data": file_name(data) if data else "",
    }


def _scores(results: list[dict], summary: list[dict] | None) -> dict[str, str]:
    """Dev score and average, over the seeds where there are several."""
    if summary:
        shown = {entry["task"]: f"{entry['mean']:.2f} ± {entry['sd']:.2f}" for entry in summary}
    else:
        shown = {result["task"]: f"{result['value']:.2f}" for result in results}
        if len(tests_only(results)) > 1:
            shown[AVERAGE] = f"{average(results):.2f}"
    return {"STS-B dev": shown.get(DEV_TASK, ""), "STS average": shown.get(AVERAGE, "")}


def _paper_averages(rows: list[PublishedRow]) -> dict[str, str]:
    return {column: row.shown(task) for row in rows for column, task in PAPER.items() if task in row.scores}
