"""A profile changes every run of a table: other base models, other data, fewer updates, a shorter evaluation.

```yaml
description: a stand-in of six layers
models: {google-bert/bert-base-uncased: ../base/minilm}  # base models and generators, by their name in the recipes
datasets:                                                # by `dataset/dataset_file`
  princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt: {file: wiki.txt}
  princeton-nlp/datasets-for-simcse/nli_for_simcse.csv: {file: nli.csv, columns: {sent0: premise}}
data: ../senteval                                        # for the evaluation, as `csezoo evaluate --data`
max_updates: 200                                         # of each stage; a run in epochs has exactly as many
transfer_rows: 1000                                      # of each part of a transfer task, evenly chosen
set: {eval_steps: 50}                                    # keys of every run
```

Paths are relative to the profile; those in `set` are taken as they are. In the commands and results of the runs they
are relative to the working directory, so that published results say nothing of the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UserError, quoted, refuse_unknown
from ..recipes import Recipe
from ..recipes.reading import coerce, read_values

LEAST_ROWS = 1000
ENTRY = "{file: FILE}, with columns: {THEIRS: YOURS} if their names differ"


@dataclass(frozen=True)
class Profile:
    """A profile, see above; the default changes nothing."""

    description: str = ""
    models: dict[str, str] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: str = "hub"
    max_updates: int | None = None
    transfer_rows: int | None = None
    set: dict[str, Any] = field(default_factory=dict)

    @property
    def measuring(self) -> dict[str, Any]:
        """What this profile changes in the evaluation."""
        place = {} if self.data == "hub" else {"data": os.path.relpath(self.data)}
        return place if self.transfer_rows is None else {**place, "transfer_rows": self.transfer_rows}

    def overrides(self, recipe: Recipe) -> dict[str, Any]:
        """Return the keys of a recipe that change."""
        changed: dict[str, Any] = {}
        for key, revision in (("base_model", "base_revision"), ("generator", "generator_revision")):
            if (name := getattr(recipe, key)) in self.models:
                changed |= {key: self.models[name], revision: None}
        changed |= self._data(recipe, "dataset", "train_file", "text_columns")
        changed |= self._data(recipe, "nli_dataset", "nli_file", "nli_columns")
        if self.data != "hub":
            changed["eval_data"] = self.data
        if self.max_updates is not None:
            changed |= _capped(recipe, self.max_updates)
        return changed | self.set

    def _data(self, recipe: Recipe, dataset: str, file: str, columns: str) -> dict[str, Any]:
        name = f"{getattr(recipe, dataset)}/{getattr(recipe, f'{dataset}_file') or ''}".rstrip("/")
        if name not in self.datasets or getattr(recipe, file):
            return {}
        mine = self.datasets[name]
        renamed = mine["columns"]
        changed = {dataset: None, f"{dataset}_file": None, f"{dataset}_revision": None, file: mine["file"]}
        if names := getattr(recipe, columns):
            changed[columns] = [renamed.get(name, name) for name in names]
        return changed


def _capped(recipe: Recipe, most: int) -> dict[str, Any]:
    steps = recipe.max_steps
    changed: dict[str, Any] = {"max_steps": most if steps is None else min(steps, most)}
    if recipe.nli_steps or recipe.nli_epochs:
        stage = min(recipe.nli_steps or most, most)
        # By default the schedule of stage 1 is as long as stage 2. It must not be shorter than stage 1.
        decay = max(stage, changed["max_steps"]) if changed["max_steps"] else None
        changed |= {"nli_steps": stage, "nli_epochs": None, "nli_decay_steps": decay}
    return changed


def load_profile(path: str | None, data: str | None = None) -> Profile:
    """Read a profile; without a path, one that changes nothing.

    Args:
        data: `hub` or a directory, instead of the profile's.
    """
    profile = _read(path) if path is not None else Profile()
    if not data:
        return profile
    # Runs are found by the name of their data: a slash at its end must not make another run.
    return replace(profile, data=data if data == "hub" else os.path.relpath(data))


def _read(path: str) -> Profile:
    if not Path(path).is_file():
        raise UserError(f"profile: {path} is not a file; give the path of a YAML file")
    values = read_values(Path(path))
    refuse_unknown(path, values, tuple(each.name for each in fields(Profile)))
    folder = Path(path).resolve().parent

    def found(where: str, name: Any) -> str:
        if not (folder / _text(where, name)).exists():
            raise UserError(f"{path}: {name} does not exist in {folder}; give a path relative to the profile")
        return os.path.relpath(folder / name)

    def dataset(where: str, entry: Any) -> dict[str, Any]:
        refuse_unknown(where, _mapping(where, entry, ENTRY), ("file", "columns"))
        if "file" not in entry:
            raise UserError(f"{where}: it has no file; give {ENTRY}")
        columns = _mapping(f"{where}: columns", entry.get("columns", {}), "THEIRS: YOURS")
        mine = {name: _text(f"{where}: columns: {name}", column) for name, column in columns.items()}
        return {"file": found(f"{where}: file", entry["file"]), "columns": mine}

    models = _mapping(f"{path}: models", values.get("models", {}), "NAME: DIRECTORY")
    datasets = _mapping(f"{path}: datasets", values.get("datasets", {}), f"NAME: {ENTRY}")
    profile = Profile(
        description=_text(f"{path}: description", values.get("description", "")),
        models={name: found(f"{path}: models: {name}", target) for name, target in models.items()},
        datasets={name: dataset(f"{path}: datasets: {name}", entry) for name, entry in datasets.items()},
        data=found(f"{path}: data", values["data"]) if "data" in values else "hub",
        max_updates=coerce(f"{path}: max_updates", values.get("max_updates"), int | None),
        transfer_rows=coerce(f"{path}: transfer_rows", values.get("transfer_rows"), int | None),
        set=_mapping(f"{path}: set", values.get("set", {}), "KEY: VALUE"),
    )
    if decided := sorted(profile.set.keys() & {"seeds", "output_dir"}):
        raise UserError(f"{path}: set: {decided[0]} is given in the command, not in a profile")
    if profile.transfer_rows is not None and profile.transfer_rows < LEAST_ROWS:
        raise UserError(
            f"{path}: transfer_rows: {profile.transfer_rows} must be at least {LEAST_ROWS}; TREC's smallest class is "
            "1.6 % of it"
        )
    return profile


def _mapping(where: str, value: Any, form: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: {quoted(value)} is not a mapping; give {form}")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {quoted(value)} is not text; put it in quotes if it is a name")
    return value
