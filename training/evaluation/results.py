"""Results files that grow: whole at every moment, and what they hold is never changed."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import UserError, one_line
from ..files import replace_file


class ResultsFile:
    """`{"model": …, "results": […]}`, which results of one model are added to.

    Args:
        path: a results file to go on with, or where a new one shall be.
        model: how a new file calls the model.
        sha256: the checksum of its files, `model_sha256` in its results.

    Raises:
        UserError: `path` is there and is no results file, or holds results of a model of other files.
    """

    def __init__(self, path: str | Path, model: str, sha256: str):
        self.path, self.model, self.sha256 = Path(path), model, sha256
        self.read()  # what cannot be gone on with is refused before the work

    def read(self) -> dict:
        """The whole content."""
        if not self.path.exists():
            return {"model": self.model, "results": []}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            name, owners = content["model"], {result.get("model_sha256") for result in content["results"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"out: {self.path} is no results file ({one_line(error)}), give another --out") from error
        if owners - {self.sha256}:
            raise UserError(f"out: {self.path} holds results of another model ({name}), give another --out")
        return content

    def find(self, key: dict) -> list[dict]:
        """The results that have every item of `key`, wherever the model's files came from."""
        wanted = {name: value for name, value in key.items() if name != "model_revision"}
        return [result for result in self.read()["results"] if wanted.items() <= result.items()]

    def add(self, results: list[dict]) -> None:
        """Append results; a reader finds the file before or after it, never half of it.

        Raises:
            UserError: the file cannot be written.
        """
        content = self.read()  # anew: another process may have added to it
        content["results"] += results
        try:
            replace_file(self.path, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise UserError(f"out: {self.path} cannot be written ({one_line(error)})") from error
