"""Results files: results are only ever added, and a reader always finds a complete file."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock

from ..errors import UserError, one_line, quoted, writing
from ..files import read_json, remove, replace_file


def _is_result(result: dict) -> bool:
    """Return whether a result has a task and a value: a number, or the neighbours of a query."""
    kind = list if result.get("metric") == "neighbours" else int | float
    return isinstance(result.get("task"), str) and isinstance(result.get("value"), kind)


class ResultsFile:
    """A file `{"model": …, "results": […]}` with results of one model.

    Args:
        path: a results file to continue, or the path of a new one.
        model: the name of the model in a new file.
        sha256: the checksum of the model's files, `model_sha256` in its results.
        recipe: what a new file says of the recipe that made the model, see `recipes.origin`; empty if it is not known.

    Raises:
        UserError: `path` exists but is not a results file, or contains results of a model with other files.
    """

    def __init__(self, path: str | Path, model: str, sha256: str, recipe: Mapping[str, object] = MappingProxyType({})):
        self.path, self.model, self.sha256, self.recipe = Path(path), model, sha256, recipe
        self.read()  # an unusable file is refused before the work

    def read(self) -> dict:
        """Read the complete content."""
        if not self.path.exists():
            return {"model": self.model, **self.recipe, "results": []}
        try:
            content = read_json(self.path)
            name, checksums = content["model"], {result.get("model_sha256") for result in content["results"]}
            if not isinstance(content["results"], list):
                raise TypeError("its results are not a list")
            if wrong := [result for result in content["results"] if not _is_result(result)]:
                raise TypeError(f"{quoted(wrong[0])} is not a result")
        except (UserError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"out: {self.path} is not a results file ({one_line(error)}); choose another --out"
            ) from error
        if checksums - {self.sha256}:
            raise UserError(f"out: {self.path} contains results of another model ({name}); choose another --out")
        return content

    def find(self, key: dict) -> list[dict]:
        """Return the results that have every item of `key`, except that the model's commit on the Hub may differ."""
        wanted = {name: value for name, value in key.items() if name != "model_revision"}
        return [result for result in self.read()["results"] if wanted.items() <= result.items()]

    def add(self, results: list[dict], key: dict | None = None) -> list[dict]:
        """Append results. A reader finds the file as it was before or after, never half of it.

        Processes that add results to one file take turns. The hidden file that they lock stays: if one of them deleted
        it, two others could lock two files.

        Args:
            results: of a task.
            key: as for `find`. If another process added results with it meanwhile, those remain the only ones.

        Returns:
            The results in the file.

        Raises:
            UserError: the file cannot be written.
        """
        lock = self.path.with_name(f".{self.path.name}.lock")
        with writing("out", self.path, "; give another --out"):
            lock.touch()  # `FileLock` would make a directory that is missing
            with FileLock(lock):
                for left in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.partial"):
                    remove(left)  # by a process that was killed
                if key and (added := self.find(key)):
                    return added
                content = self.read()  # again, because another process may have added results
                content["results"] += results
                replace_file(self.path, json.dumps(content, indent=2) + "\n")
                return results
