"""The measured and published scores of all models as a CSV file, and a list of the models in it.

This file imports nothing heavy, so that `csezoo models` answers at once.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError, one_line
from ..tables import text_table

# Beside the package, in a checkout and in an installation.
CARDS = Path(__file__).parents[2] / "model_cards"
FILE = "results.csv"
STS_AVERAGE = "STS average"
METHODS = "methods and additions"  # `train --method` takes the methods, other keys make additions such as a prompt
LOADABLE = "adapter here"
MEASURED, PUBLISHED, RECIPE_ONLY = ("measured here", "published by its authors", "recipe only")
STATUSES = (LOADABLE, MEASURED, PUBLISHED, RECIPE_ONLY)
# In the directory of an adapter.
ADAPTER = "adapter_config.json"
COLUMNS = ("name", METHODS, "base model", "data", "MB", "CPU ms", STS_AVERAGE, "status")
OF_MODEL = ("model", "card", "status", "trained", "method", "base_model", "data", "bytes", "cpu_ms_per_sentence")
OF_SCORE = ("task", "metric", "seed", "value", "deviation", "source")


@dataclass
class Model:
    """A model of the zoo, with its scores.

    Args:
        name: of the run, the recipe or the checkpoint.
        card: path of the card or the results, relative to the directory of the cards.
        status: one of `STATUSES`.
        trained: whether it was trained here and measured.
        method: methods and additions, joined by ` + `.
        base_model: last part of the name of the pre-trained encoder.
        data: last part of the name of the training data.
        bytes: size of the weights in float32; None if it is not known.
        cpu_ms_per_sentence: processor time of encoding a sentence in milliseconds, see `csezoo benchmark serving`;
            None if it was not measured.
        scores: mean over the seeds by task, × 100. For a model without a measurement, the numbers of its paper.
        deviations: standard deviation over the seeds by task, where there are several.
    """

    name: str
    card: str
    status: str
    trained: bool
    method: str
    base_model: str
    data: str
    bytes: int | None = None
    cpu_ms_per_sentence: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    deviations: dict[str, float] = field(default_factory=dict)

    def add_scores(self, task: str, values: list[float], published: float | None = None) -> None:
        """Add the scores of all seeds on a task. One score has at most the deviation that a paper reports."""
        self.scores[task] = statistics.mean(values)
        deviation = statistics.stdev(values) if len(values) > 1 else published
        if deviation is not None:
            self.deviations[task] = deviation


def list_models(
    *,
    method: str | None = None,
    backbone: str | None = None,
    trained: bool | None = None,
    max_bytes: int | None = None,
    cards: str | Path = CARDS,
) -> list[Model]:
    """Return the models of `results.csv`: trained and measured ones first, and of each status the best one first.

    Args:
        method: a method or an addition that the model has, such as `diffcse` or `promptbert`.
        backbone: last part of the name of its pre-trained encoder, such as `roberta-base`.
        trained: True for models that were trained here and measured, False for all others.
        max_bytes: largest size of the weights. A model of unknown size is left out.
        cards: directory with `results.csv`, as `csezoo cards` writes it.

    Raises:
        UserError: the file cannot be read, or it is not one that `csezoo cards` wrote.

    Example:
        >>> [model.status for model in list_models(method="simcse", backbone="roberta-large", trained=False)]
        ['published by its authors', 'recipe only']
    """
    models = _read(Path(cards) / FILE)
    return [
        model
        for model in models
        if (method is None or method in model.method.split(" + "))
        and (backbone is None or model.base_model == backbone)
        and (trained is None or model.trained == trained)
        and (max_bytes is None or (model.bytes is not None and model.bytes <= max_bytes))
    ]


def _read(file: Path) -> list[Model]:
    models: dict[str, Model] = {}
    values: dict[tuple[str, str], list[float]] = {}
    deviations: dict[tuple[str, str], float] = {}
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                models.setdefault(row["card"], _model(row))
                if row["value"]:
                    values.setdefault((row["card"], row["task"]), []).append(float(row["value"]))
                if row["deviation"]:
                    deviations[row["card"], row["task"]] = float(row["deviation"])
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({one_line(error)}); give the directory of the cards, or run csezoo cards"
        ) from error
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{file} is not a file of csezoo cards ({one_line(error)}); write it again") from error
    for (card, task), of_seeds in values.items():
        models[card].add_scores(task, of_seeds, deviations.get((card, task)))
    return list(models.values())


def _model(row: dict[str, str]) -> Model:
    name, card, status, trained, method, base_model, data, size, time = (row[column] for column in OF_MODEL)
    known = int(size) if size else None, float(time) if time else None
    return Model(name, card, status, trained == "true", method, base_model, data, *known)


def cells(model: Model) -> dict[str, str]:
    """Return the texts of a model's row, by column; nothing where something is not known."""
    size = "" if model.bytes is None else f"{model.bytes / 1e6:.0f}"
    time = shown_milliseconds(model.cpu_ms_per_sentence)
    texts = (model.name, model.method, model.base_model, model.data, size, time, shown_score(model), model.status)
    return dict(zip(COLUMNS, texts, strict=True))


def format_models(models: list[Model]) -> str:
    """Return the models as a table of text, a line per model; what is not known is a dash.

    Example:
        >>> print(format_models([Model("a", "a/README.md", MEASURED, True, "simcse", "bert", "", None, 1.25)]))
        name  methods and additions  base model  MB  CPU ms  STS average  status
        a     simcse                 bert         -    1.25            -  measured here
    """
    columns = [column for column in COLUMNS if column != "data"]  # the longest one
    rows = [[cells(model)[column] or "-" for column in columns] for model in models]
    return text_table([columns, *rows], left=(0, 1, 2, 6))


def shown_score(model: Model, task: str = STS_AVERAGE) -> str:
    """Return a score as text, with its deviation if it has one; nothing if there is no score."""
    if task not in model.scores:
        return ""
    deviation = f" ± {model.deviations[task]:.2f}" if task in model.deviations else ""
    return f"{model.scores[task]:.2f}{deviation}"


def shown_milliseconds(time: float | None) -> str:
    """Return a time with three digits as text; nothing if it was not measured.

    Example:
        >>> shown_milliseconds(1.254), shown_milliseconds(12.54), shown_milliseconds(125.4)
        ('1.25', '12.5', '125')
    """
    return "" if time is None else f"{time:.{max(0, 3 - len(str(int(time))))}f}"
