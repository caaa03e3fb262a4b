"""The models of the index: measured runs, encoders without training, released checkpoints, recipes without a run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import ModelCard

from ..errors import UserError, one_line
from ..evaluation.report import AVERAGE
from ..evaluation.tasks.names import DEV_TASK, STS_TASKS, TRANSFER_TASKS
from ..files import read_json
from ..pictures.captions import PICTURES
from ..recipes import Recipe, file_name, load_recipe, recipe_names
from ..recipes.released import kinds, released
from .card_tables import name_of_data
from .listing import ADAPTER, LOADABLE, MEASURED, PUBLISHED, RECIPE_ONLY, STATUSES, STS_AVERAGE, Model
from .method_texts import text_names, trained
from .model_card import model_card, recipe_card
from .published import TRANSFER_AVERAGE, PublishedRow, published, published_rows
from .released_card import released_card
from .results_files import column, newest
from .serving import Shape, read_serving, shape_of

# The names of the averages in the index and in `results.csv`.
AVERAGES = {AVERAGE: STS_AVERAGE, TRANSFER_AVERAGE: "transfer average"}
TASKS = (DEV_TASK, *STS_TASKS, *TRANSFER_TASKS, AVERAGES[TRANSFER_AVERAGE])


class Score(NamedTuple):
    """A line of `results.csv`."""

    task: str  # its name, or that of an average
    metric: str  # of the value
    seed: int | None  # of a run with seeds; None for a published score and for an encoder without training
    value: float  # × 100
    deviation: float | None = None  # standard deviation that a paper reports
    source: str = "csezoo"  # the paper and its table; `csezoo` for a measured score


@dataclass
class Entry:
    """A row of the index."""

    model: Model  # what `list_models` returns of it
    shape: Shape  # of the model at test
    card: ModelCard | None = None  # None for an encoder that was measured without training
    lines: list[Score] = field(default_factory=list)  # its lines of `results.csv`
    recipe: str | None = None  # the zoo's recipe that a measured run started from, if any

    def __post_init__(self):
        for task in dict.fromkeys(line.task for line in self.lines):
            lines = [line for line in self.lines if line.task == task]
            self.model.add_scores(task, [line.value for line in lines], lines[0].deviation)


def entries(directory: Path) -> list[Entry]:
    """Return what is in the directory of the cards and in the zoo: models that were trained here first, and of each
    status the one with the best average first.
    """
    runs = sorted(file.parent for file in directory.glob("*/results.json"))
    found = [_measured(run) for run in runs if (run / "recipe.yaml").is_file()]
    known = {entry.model.name for entry in found}
    found += [_encoder(file) for file in sorted(directory.glob("untrained/*.json"))]
    found += [_released(name) for name in released()]
    for name in (name for name in recipe_names() if name not in known):
        found.append(_recipe_only(name, [entry.model for entry in found if entry.recipe == name]))
    sizes = read_serving(directory)
    for entry in found:
        shape = sizes.get(entry.shape.name, {})
        entry.model.bytes, entry.model.cpu_ms_per_sentence = shape.get("bytes"), shape.get("cpu_ms_per_sentence")
    return sorted(found, key=_place)


def _place(entry: Entry) -> tuple:
    model = entry.model
    score = model.scores.get(STS_AVERAGE)
    return STATUSES.index(model.status), not model.trained, score is None, -(score or 0), model.name


def _measured(run: Path) -> Entry:
    recipe = load_recipe(str(run / "recipe.yaml"))
    report = read_json(run / "results.json")
    adapter = (run / ADAPTER).is_file()
    try:
        # A task may have several receipts. That of each seed which was written last counts.
        last = {(column(result), result.get("seed")): result for result in report["results"]}
        report["results"] = list(last.values())
        pictures = [name for name in PICTURES if (run / name).is_file()]
        where = f"model_cards/{run.name}" if adapter else None
        card = model_card(recipe, report, pictures=pictures, published=False, adapter=where)
        status = LOADABLE if adapter else MEASURED
        model = _described(recipe, run.name, status, trained=trained(recipe))
        rank = read_json(run / ADAPTER)["r"] if adapter else 0
        shape = Shape(model.base_model, adapter=rank) if adapter else _shape(recipe)
        return Entry(model, shape, card, _lines(report["results"]), recipe.recipe)
    except (KeyError, TypeError) as error:
        raise UserError(f"{run / 'results.json'} is not a results file ({one_line(error)})") from error


def _encoder(file: Path) -> Entry:
    report = read_json(file)
    try:
        base, lines = file_name(report["model"]), _lines(newest(report["results"]))
        name = f"{base}, {report['results'][-1]['pooling']}"
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(f"{file} is not a results file ({one_line(error)})") from error
    link = f"{file.parent.name}/{file.name}"
    return Entry(Model(name, link, MEASURED, False, "untrained", base, ""), Shape(base), lines=lines)


def _released(name: str) -> Entry:
    entry = released()[name]
    kind = kinds()[entry.kind]
    model = Model(
        name,
        f"{name.replace('/', '--')}/README.md",
        PUBLISHED,
        False,
        " + ".join(kind.texts),
        file_name(entry.base_model),
        entry.data or kind.data or "",
    )
    values: dict[str, Any] = {**kind.model, **next(iter(kind.servings.values()), {}), **entry.model}
    family = "roberta" if "roberta" in entry.base_model else "bert"
    values["prompts"] = [kind.prompts[family]] if kind.prompts else None
    lines = _published(published_rows(reversed(entry.scores)))  # the first row of a suite is the file's own
    card = released_card(name, kind, entry)
    return Entry(model, shape_of(entry.base_model, kind.method, values), card, lines)


def _recipe_only(name: str, changed: list[Model]) -> Entry:
    recipe = load_recipe(name)
    card = recipe_card(recipe, changed=changed)
    return Entry(_described(recipe, name, RECIPE_ONLY), _shape(recipe), card, _published(published(name)))


def _described(recipe: Recipe, name: str, status: str, *, trained: bool = False) -> Model:
    used = [recipe.train_file or name_of_data(recipe.dataset_file, recipe.dataset)]
    if recipe.reads_labelled_pairs or not any(used):
        used.append(recipe.nli_file or name_of_data(recipe.nli_dataset_file, recipe.nli_dataset))
    return Model(
        name=name,
        card=f"{name}/README.md",
        status=status,
        trained=trained,
        method=" + ".join(text_names(recipe)),
        base_model=file_name(recipe.base_model) if recipe.base_model else "",
        data=" + ".join(dict.fromkeys(file_name(name) for name in used if name)),
    )


def _shape(recipe: Recipe) -> Shape:
    base = "" if recipe.flow else recipe.base_model or ""  # the size of a flow is not measured
    return shape_of(base, recipe.method, recipe.model, recipe.whitening)


def _lines(results: list[dict]) -> list[Score]:
    """Return the lines of measured results, and of each seed the average over the seven STS tasks if it has all."""
    lines = [
        Score(column(result), result["metric"], result.get("seed"), float(result["value"]))
        for result in results
        if isinstance(result["value"], int | float)
    ]
    for seed in dict.fromkeys(line.seed for line in lines):
        values = {line.task: line.value for line in lines if line.seed == seed}
        for name, tasks in ((STS_AVERAGE, STS_TASKS), (AVERAGES[TRANSFER_AVERAGE], TRANSFER_TASKS)):
            if set(tasks) <= values.keys():
                metric = "spearman" if tasks == STS_TASKS else "accuracy"
                lines.append(Score(name, metric, seed, statistics.mean(values[task] for task in tasks)))
    return lines


def _published(rows: list[PublishedRow]) -> list[Score]:
    """Return the lines of published scores; of two rows with the same task, the second."""
    lines = {}
    for row in rows:
        for task, value in row.scores.items():
            metric = "accuracy" if task in (*TRANSFER_TASKS, TRANSFER_AVERAGE) else "spearman"
            name = AVERAGES.get(task, task)
            lines[name] = Score(name, metric, None, value, row.deviations.get(task), row.source)
    return list(lines.values())
