"""`csezoo cards`: write the model cards of all recipes and measured runs, and their index."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from huggingface_hub import ModelCard

from ..errors import UserError, one_line
from ..evaluation.report import AVERAGE, average, tests_only
from ..evaluation.tasks.sts import DEV_TASK
from ..files import read_json, refuse_links_out
from ..pictures.captions import PICTURES
from ..recipes import Recipe, changes, file_name, load_recipe, recipe_names
from ..recipes.released import STATUS, kinds, released
from .escaping import plain
from .method_texts import IDEAS, text_names
from .model_card import model_card, recipe_card
from .published import TRANSFER_AVERAGE, PublishedRow, comparable, published, published_rows
from .released_card import released_card
from .tables import markdown_table

PAPER = {"paper, STS": AVERAGE, "paper, transfer": TRANSFER_AVERAGE}
COLUMNS = ("name", "method", "base model", "data", "STS-B dev", "STS average", *PAPER, "status")
TRAINED, UNTRAINED = "trained here", "not trained here"
IDEAS_AT = "../ideas/"
INTRODUCTION = """# Model cards

Every recipe, every measured run and every checkpoint that the papers' authors released has a card. `csezoo cards`
writes them from recipes, results and the tables of the papers; no number is typed by hand. Scores are Spearman ×
100, the average is over the seven STS tests, and ± is the standard deviation over seeds. The papers' averages are
over the seven STS tests and over the seven transfer tasks (accuracy). Runs on a small stand-in encoder can be
compared with each other, but not with the papers. For a released checkpoint the paper's columns have what its
authors report, nothing was verified here, and `csezoo convert` makes a repository of the zoo from it."""


@dataclass
class Entry:
    """A row of the index.

    Args:
        link: path of the card or the results, relative to the index.
        cells: the texts of the row by column, see `COLUMNS`.
        card: `None` for an encoder that was measured without training.
    """

    link: str
    cells: dict[str, str]
    card: ModelCard | None = None


def write_cards(directory: Path) -> list[Entry]:
    """Write the card of every recipe and every measured run, the pictures of their ideas, and the index.

    Args:
        directory: the directory of the cards. A sub-directory with `recipe.yaml` and `results.json` is a measured run;
            its card is written there. JSON files in `untrained/` are results of encoders without training.

    Returns:
        The rows of the index.

    Raises:
        UserError: a recipe or a results file cannot be read, a link leads out of the directory, or it cannot be
            written.
    """
    refuse_links_out(directory)
    index = entries(directory)
    rows = [
        [f"[{plain(e.cells['name'])}]({quote(e.link)})", *(plain(e.cells.get(column, "")) for column in COLUMNS[1:])]
        for e in index
    ]
    try:
        shutil.copytree(IDEAS, directory / "ideas", dirs_exist_ok=True)
        for entry in index:
            if entry.card:
                (directory / entry.link).parent.mkdir(parents=True, exist_ok=True)
                entry.card.save(directory / entry.link)
        page = f"{INTRODUCTION}\n\n{markdown_table(list(COLUMNS), *rows)}\n"
        (directory / "README.md").write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"out: {directory} cannot be written ({one_line(error)})") from error
    return index


def entries(directory: Path) -> list[Entry]:
    """Return measured runs, measured encoders without training, recipes without a run, released checkpoints."""
    runs = sorted(file.parent for file in directory.glob("*/results.json"))
    measured = [_measured(run) for run in runs if (run / "recipe.yaml").is_file()]
    encoders = [_encoder(file) for file in sorted(directory.glob("untrained/*.json"))]
    known = {entry.cells["name"] for entry in measured}
    recipes = [_untrained(name) for name in recipe_names() if name not in known]
    return [*measured, *encoders, *recipes, *(_released(name) for name in released())]


def _measured(run: Path) -> Entry:
    recipe = load_recipe(str(run / "recipe.yaml"))
    report = read_json(run / "results.json")
    try:
        results, summary = report["results"], report.get("summary")
        if summary:
            results = [result for result in results if result["seed"] == report["best_seed"]]
        runs = report.get("runs", [report] if "training" in report else [])
        pictures = [name for name in PICTURES if (run / name).is_file()]
        card = model_card(recipe, results, summary, runs=runs, pictures=pictures, ideas_at=IDEAS_AT)
        cells = {**_described(recipe, run.name), **_scores(results, summary), "status": TRAINED}
    except (KeyError, TypeError) as error:
        raise UserError(f"{run / 'results.json'} is not a results file ({one_line(error)})") from error
    cells |= _paper_averages(comparable(recipe.recipe, changes(recipe)))
    return Entry(f"{run.name}/README.md", cells, card)


def _encoder(file: Path) -> Entry:
    report = read_json(file)
    try:
        results = [result for result in report["results"] if result["metric"] == "spearman"]
        model = file_name(report["model"])
        cells = {"name": f"{model}, {results[0]['pooling']}", "method": "untrained", "base model": model}
        return Entry(f"{file.parent.name}/{file.name}", {**cells, **_scores(results, None)})
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(f"{file} is not a results file ({one_line(error)})") from error


def _untrained(name: str) -> Entry:
    recipe = load_recipe(name)
    cells = {**_described(recipe, name), **_paper_averages(published(name)), "status": UNTRAINED}
    return Entry(f"{name}/README.md", cells, recipe_card(recipe, ideas_at=IDEAS_AT))


def _released(name: str) -> Entry:
    entry = released()[name]
    kind = kinds()[entry.kind]
    cells = {
        "name": name,
        "method": " + ".join(kind.texts),
        "base model": file_name(entry.base_model),
        "data": kind.data or "",
        "status": STATUS,
        **_paper_averages(published_rows(reversed(entry.scores))),  # the first row of a suite is the file's own
    }
    return Entry(f"{name.replace('/', '--')}/README.md", cells, released_card(name, kind, entry))


def _described(recipe: Recipe, name: str) -> dict[str, str]:
    data = recipe.train_file or recipe.dataset_file or recipe.dataset or recipe.nli_file or recipe.nli_dataset
    return {
        "name": name,
        "method": " + ".join(text_names(recipe)),
        "base model": file_name(recipe.base_model) if recipe.base_model else "",
        "data": file_name(data) if data else "",
    }


def _scores(results: list[dict], summary: list[dict] | None) -> dict[str, str]:
    """Return the dev score and the average of the tests, with the standard deviation if there are several seeds."""
    if summary:
        shown = {entry["task"]: f"{entry['mean']:.2f} ± {entry['sd']:.2f}" for entry in summary}
    else:
        shown = {result["task"]: f"{result['value']:.2f}" for result in results}
        if len(tests_only(results)) > 1:
            shown[AVERAGE] = f"{average(results):.2f}"
    return {"STS-B dev": shown.get(DEV_TASK, ""), "STS average": shown.get(AVERAGE, "")}


def _paper_averages(rows: list[PublishedRow]) -> dict[str, str]:
    return {column: row.shown(task) for row in rows for column, task in PAPER.items() if task in row.scores}
