"""The manifests of the papers' tables and figures: one YAML file for each, read and checked.

A manifest has these keys:

* `title`, `source` (paper and table), `columns`, `rows`;
* `seeds`: those of every run, by default the recipe's; `runs`: how many runs the paper averages, 1 by default;
* `against`: a row with which the others are compared, see `against.py`;
* `figure`: of a figure, how it is drawn (see `FIGURES`); `glue`: settings of fine-tuning;
* `notes`: what the paper leaves open; `needs`: what is not public, or not in the zoo.

A row has a `name`, perhaps a `group`, and one of

* `recipe`, with `set` (keys to override) and `subsets` (seeds of the draw of `nli_fraction` or `train_fraction`);
* `released` or `untrained`: a Hub id or directory, with a `pooling` if it is a plain encoder. A checkpoint of
  `released.yaml` is converted first, with a `serving` if it has several;
* `quoted`: why the row is not run here.

The paper's numbers are `values` and `deviations`, in the order of the columns; null where the paper has none, and an
empty list where it has none at all. Numbers that the zoo has already (`cards.published`, for an unchanged recipe;
`released.yaml`) are read from there. `like: PAPER/ITEM NAME` takes over the row NAME of another manifest: the numbers
of the columns that both have, and what the row does not set itself. `x` is the position on the horizontal axis of a
figure.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from ..cards.published import PublishedRow, published, published_rows
from ..errors import UserError, nearest, refuse_unknown
from ..recipes.released import released
from .columns import COLUMN_SETS, Column

ITEMS = Path(__file__).parent / "items"
# How a figure is drawn: points of the rows, the picture that each run draws itself, or a portrait of each model.
FIGURES = ("x", "y", "picture", "portrait", "weakened")
KEPT = ("title", "source", "figure", "glue", "notes", "needs", "against")  # as they are
ITEM_KEYS = (*KEPT, "columns", "rows", "seeds", "runs")
KINDS = ("recipe", "released", "untrained", "quoted")
# What `like` takes over, beside the numbers.
TAKEN = (*KINDS, "set", "subsets", "pooling", "serving", "needs", "note", "runs", "seeds")


@dataclass(frozen=True)
class Row:
    """A row of a manifest, see above; `values` and `deviations` are by the names of the columns here."""

    name: str
    group: str = ""
    recipe: str | None = None
    set: dict[str, Any] = field(default_factory=dict)
    subsets: list[int] = field(default_factory=list)
    released: str | None = None
    untrained: str | None = None
    pooling: str | None = None
    serving: str | None = None
    quoted: str | None = None
    values: dict[str, float] = field(default_factory=dict)
    deviations: dict[str, float] = field(default_factory=dict)
    source: str | None = None
    seeds: list[int] | None = None
    runs: int = 1
    note: str | None = None
    needs: str | None = None
    x: float | None = None

    @property
    def label(self) -> str:
        return f"{self.group}, {self.name}" if self.group else self.name


@dataclass(frozen=True)
class Item:
    """A table or a figure of a paper, see above."""

    name: str
    title: str
    source: str
    columns: list[Column]
    rows: list[Row]
    figure: dict[str, Any] | None = None
    glue: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    against: str | None = None


def item_names() -> list[str]:
    """Return the names of all items, by paper and number.

    Example:
        >>> item_names()[:2]
        ['diffaug/figure-3a', 'diffaug/figure-3b']
    """
    names = [path.relative_to(ITEMS).with_suffix("").as_posix() for path in ITEMS.rglob("*.yaml")]
    return sorted(names, key=_by_number)


def _by_number(name: str) -> tuple[str, int, str]:
    start, _, number = name.rpartition("-")
    digits = "".join(character for character in number if character.isdigit())
    return (start, int(digits), number) if digits else (name, 0, "")


@functools.cache
def load_item(name: str) -> Item:
    """Read and check the manifest of an item."""
    raw = _read(name)
    columns = _columns(name, raw)
    refuse_unknown(name, raw, ITEM_KEYS)
    refuse_unknown(f"{name}: figure", raw.get("figure") or {}, FIGURES)
    rows = [_row(name, raw, row, columns) for row in raw["rows"]]
    labels = [row.label for row in rows]
    if double := {label for label in labels if labels.count(label) > 1}:
        raise UserError(f"{name}: two rows are called {min(double)}; rename one")
    if raw.get("against") not in (None, *labels):
        raise UserError(f"{name}: against {raw['against']!r} must be one of {'; '.join(labels)}")
    if "against" in raw and not any(column.averages_sts for column in columns):
        raise UserError(f"{name}: against compares the average of the STS tasks; add sts or sts-average to columns")
    kept = {key: raw[key] for key in KEPT if key in raw}
    return Item(name=name, columns=columns, rows=rows, **kept)


@functools.cache
def _read(name: str) -> dict[str, Any]:
    names = item_names()
    if name not in names:
        raise UserError(f"no item {name!r}: {nearest(name, names, 'csezoo reproduce lists them')}")
    return yaml.safe_load((ITEMS / f"{name}.yaml").read_text(encoding="utf-8"))


def _columns(name: str, raw: dict[str, Any]) -> list[Column]:
    columns: list[Column] = []
    for entry in raw["columns"]:
        if isinstance(entry, str) and entry not in COLUMN_SETS:
            raise UserError(f"{name}: columns {entry!r} must be one of {', '.join(COLUMN_SETS)}, or a mapping")
        columns += COLUMN_SETS[entry] if isinstance(entry, str) else [Column(**entry)]
    names = [column.name for column in columns]
    if double := {one for one in names if names.count(one) > 1}:
        raise UserError(f"{name}: two columns are called {min(double)}; rename one")
    return columns


def _row(name: str, raw: dict[str, Any], entry: dict[str, Any], columns: list[Column]) -> Row:
    where = f"{name}: row {entry.get('name')}"
    refuse_unknown(where, entry, (*(each.name for each in fields(Row)), "like"))
    row: dict[str, Any] = {key: raw[key] for key in ("seeds", "runs") if key in raw}
    if "like" in entry:
        row |= _taken(where, entry["like"], columns)
    if any(kind in entry for kind in KINDS):  # another kind than that of the row it is like
        row = {key: value for key, value in row.items() if key not in TAKEN or key in ("seeds", "runs")}
    row |= {key: value for key, value in entry.items() if key not in ("like", "values", "deviations")}
    row |= {key: _by_column(where, key, entry[key], columns) for key in ("values", "deviations") if key in entry}
    if sum(kind in row for kind in KINDS) != 1:
        raise UserError(f"{where}: give one of {', '.join(KINDS)}, or `like`")
    if "values" not in row and "recipe" in row and not (row.get("set") or row.get("subsets")):
        row |= _first_with_numbers(published(row["recipe"]), columns)
    if "values" not in row and row.get("released") in released():
        row |= _of_released(row["released"], columns)
    return Row(**row)


def _taken(where: str, like: str, columns: list[Column]) -> dict[str, Any]:
    """Return what a row takes over from a row of another manifest."""
    name, _, label = like.partition(" ")
    raw = _read(name)
    theirs = _columns(name, raw)
    named = [(entry, Row(entry["name"], entry.get("group", ""))) for entry in raw["rows"]]
    found = [_row(name, raw, entry, theirs) for entry, row in named if label in (row.name, row.label)]
    if len(found) != 1:
        raise UserError(f"{where}: {name} has {len(found)} rows {label!r}; it must be one")
    (row,) = found
    empty = Row(name="")
    taken = {key: getattr(row, key) for key in TAKEN if getattr(row, key) != getattr(empty, key)}
    mine = {(column.suite, column.task, column.metric): column.name for column in columns}
    renamed = {column.name: mine.get((column.suite, column.task, column.metric)) for column in theirs}
    taken["runs"] = row.runs  # numbers keep the number of runs that they are of
    for key in ("values", "deviations"):
        taken[key] = {renamed[old]: number for old, number in getattr(row, key).items() if renamed[old]}
    return {**taken, "source": row.source or raw["source"]}


def _by_column(where: str, key: str, numbers: list[float | None], columns: list[Column]) -> dict[str, float]:
    if not numbers:
        return {}
    if len(numbers) != len(columns):
        raise UserError(f"{where}: {len(numbers)} {key} for {len(columns)} columns; write null where there is none")
    return {column.name: number for column, number in zip(columns, numbers, strict=True) if number is not None}


def _first_with_numbers(rows: list[PublishedRow], columns: list[Column]) -> dict[str, Any]:
    """Return the numbers of the first row that has one of the columns."""
    tasks = {column.name: column.published_task for column in columns}
    for row in rows:
        values = {name: row.scores[task] for name, task in tasks.items() if task in row.scores}
        if values:
            deviations = {name: row.deviations[task] for name, task in tasks.items() if task in row.deviations}
            return {"values": values, "deviations": deviations, "source": row.source, "note": row.note}
    return {}


def _of_released(model: str, columns: list[Column]) -> dict[str, Any]:
    """Return the numbers that the authors of a released checkpoint report, from the first row of each suite."""
    rows = published_rows(released()[model].scores)
    suites = [[column for column in columns if column.suite == suite] for suite in ("sts", "transfer")]
    found = [numbers for suite in suites if (numbers := _first_with_numbers(rows, suite))]
    texts = {key: "; ".join(numbers[key] for numbers in found if numbers[key]) or None for key in ("source", "note")}
    return {"values": {name: value for numbers in found for name, value in numbers["values"].items()}, **texts}
