"""The runs that an item needs: its rows, resolved, for every subset and seed."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..recipes import Recipe, deciding_keys, load_recipe
from ..recipes.origin import differences
from ..recipes.reading import as_word
from ..recipes.released import released
from .manifests import Item, Row
from .profiles import Profile


@dataclass(frozen=True)
class Run:
    """A unit of work: a recipe with one seed, or a finished model to evaluate."""

    directory: Path  # of the run; the same for the same resolved recipe and seed, whatever table asks for it
    model: str  # what is evaluated: `best/` of the run, or the finished model
    recipe: Recipe | None = None  # with its seed; None for a finished model
    source: str = ""  # the recipe's name, or the path of its file
    overrides: tuple[tuple[str, str], ...] = ()  # what the command sets beside it
    pooling: str | None = None  # of a finished plain encoder
    kind: str | None = None  # of a released checkpoint that is converted first, as `csezoo convert --as` takes it
    serving: str | None = None  # of that checkpoint
    # evaluation, glue: the files in `directory` of what is measured after training
    evaluation: str = "evaluation.json"
    glue: str = "glue.json"

    def command(self) -> list[str]:
        """Return the arguments of `python -m csezoo.training.train` that make the run."""
        assert self.recipe is not None
        words = [f"--{key}={value}" for key, value in self.overrides]
        return [self.source, *words, f"--seeds={as_word(self.recipe.seeds)}", f"--output_dir={self.directory}"]


@dataclass(frozen=True)
class Planned:
    """A row with its runs."""

    row: Row  # of the manifest
    runs: list[Run]  # of all subsets and seeds; none for a row that is not run
    reasons: list[str]  # why the numbers are not comparable with the paper's, or why there are none


def plan(
    item: Item,
    out: Path,
    *,
    rows: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: dict[str, Any] | None = None,
    profile: Profile | None = None,
) -> list[Planned]:
    """Expand an item to its runs.

    A row that needs what is not public is left out, unless `rows` names rows.

    Args:
        out: directory of everything that is made; runs are in `out/runs`, for all items.
        rows: names of rows, or patterns such as `DiffAug*`; all by default.
    """
    named: list[Row] = []
    for name in rows:
        if not (found := _rows_named(item, name)):
            raise UserError(f"rows: no row {name!r} in {item.name}; there are {'; '.join(r.label for r in item.rows)}")
        named += found
    chosen = [row for row in item.rows if not rows or row in named]
    used = profile or Profile()
    planned = [_planned(row, out, list(seeds), overrides or {}, used, bool(rows)) for row in chosen]
    return [_measured_by(each, item, used) for each in planned]


def _rows_named(item: Item, name: str) -> list[Row]:
    """Return the rows with this label; or else with this name; or else those that the pattern matches."""
    wanted = name.lower()
    labels = [row for row in item.rows if row.label.lower() == wanted]
    names = [row for row in item.rows if row.name.lower() == wanted]
    pattern = wanted.replace("[", "[[]")  # a bracket is one, as in one-[CLS]
    alike = [row for row in item.rows if fnmatch.filter((row.name.lower(), row.label.lower()), pattern)]
    return labels or names or alike


def _planned(
    row: Row, out: Path, seeds: list[int], overrides: dict[str, Any], profile: Profile, named: bool
) -> Planned:
    if row.quoted:
        return Planned(row, [], [f"quoted: {row.quoted}"])
    if row.needs and not named:
        return Planned(row, [], [f"not run: {row.needs}"])
    notes = [row.note] if row.note else []
    named_profile = f" ({profile.description})" if profile.description else ""
    if row.recipe is None:
        if (row.released or row.untrained) in profile.models:
            notes.append(f"another model than in the paper{named_profile}")
        return Planned(row, [_finished(row, out, profile)], notes)
    runs, changed = [], set[str]()
    for drawn in [{"fraction_seed": subset} for subset in row.subsets] or [{}]:
        paper = load_recipe(row.recipe, {**row.set, **drawn})
        mine = {**profile.overrides(paper), **overrides}
        recipe = load_recipe(row.recipe, {**row.set, **drawn, **mine}) if mine else paper
        changed |= set(differences(recipe, paper))
        for seed in dict.fromkeys(seeds) or row.seeds or recipe.seeds:
            runs.append(run_of(row.recipe, recipe, {**row.set, **drawn, **mine}, seed, out))
    if changed:
        notes.append(f"other {', '.join(sorted(changed))} than in the paper{named_profile}")
    return Planned(row, runs, notes)


def _measured_by(planned: Planned, item: Item, profile: Profile) -> Planned:
    """Return a row whose runs have a file of results for each way of measuring: profile and settings of GLUE."""
    evaluation, glue = _file("evaluation", profile.measuring), _file("glue", item.glue)
    runs = [replace(run, evaluation=evaluation, glue=glue) for run in planned.runs]
    limited = profile.transfer_rows and any(column.suite.startswith(("transfer", "trec")) for column in item.columns)
    few = [f"at most {profile.transfer_rows} rows of each part of a transfer task"] if runs and limited else []
    return replace(planned, runs=runs, reasons=planned.reasons + few)


def _file(kind: str, settings: dict[str, Any]) -> str:
    return f"{kind}-{identity(settings)}.json" if settings else f"{kind}.json"


def run_of(source: str, recipe: Recipe, values: dict[str, Any], seed: int, out: Path) -> Run:
    """Return the run of a recipe with a seed. Its directory is named after all keys that its numbers depend on."""
    directory = out / "runs" / f"{recipe.name}-{identity(deciding_keys(recipe))}" / f"seed-{seed}"
    read = recipe.to_dict()  # YAML reads a bare `no` as false
    words = tuple((key, as_word(read.get(key, value) if value is False else value)) for key, value in values.items())
    return Run(directory, str(directory / "best"), replace(recipe, seeds=[seed]), source, words)


def identity(values: dict[str, Any]) -> str:
    """Return a short name of these values: ten characters that other values do not have."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def _finished(row: Row, out: Path, profile: Profile) -> Run:
    model = str(row.released or row.untrained)
    model = profile.models.get(model, model)
    name = re.sub(r"[^\w.-]+", "-", f"{model.strip('./')}-{row.pooling or row.serving or 'own'}")
    if Path(model, "config.json").is_file():
        from ..evaluation.encoders import model_receipt  # torch is too slow for a list of items

        # The same path from another directory, or at another time, may be another model.
        name += f"-{str(model_receipt(model)['model_sha256'])[:10]}"
    entry = released().get(str(row.released))
    kind = entry.kind if entry else None
    return Run(out / "runs" / name, model, pooling=row.pooling, kind=kind, serving=row.serving)
