"""What is about to be published: every file as it will lie on the Hub, checked as a stranger will meet it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml
from huggingface_hub import ModelCard

from ..errors import UserError, one_line
from ..hub import differing_files
from .audit import audit

NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "fingerprint.json", "README.md")
OF_THE_RUN = ("recipe.yaml", "results.json")
METADATA = ("language", "library_name", "license", "pipeline_tag", "tags")
PLACEHOLDER = "REPOSITORY"  # how the card calls the repository until it has a name
STRANGER = """
import sys

sys.modules["csezoo"] = None  # as where it is not installed
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
print(*model.verify(AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)), sep="\\n")
"""


def stage(run: str, to: str, staged: Path) -> None:
    """Lay out what a run publishes: its `best/` with the recipe and the results beside it, or a repository directory.

    Large files are linked. Hidden ones are left out.

    Args:
        run: a run directory with `best/` in it, or a repository directory itself.
        to: takes the placeholder's place on the card.
        staged: an empty directory.

    Raises:
        UserError: something is missing.
    """
    directory = finished_repository(run)
    files = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    if directory != Path(run):
        files |= {name: Path(run, name) for name in OF_THE_RUN}
    for name, path in files.items():
        if not hidden(name):
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).symlink_to(path.absolute())
    _rewrite(staged / "README.md", lambda card: card.replace(PLACEHOLDER, to))
    if "recipe.yaml" in files:
        _rewrite(staged / "recipe.yaml", _without_directories)


def finished_repository(run: str) -> Path:
    """The repository of a finished run, its `best/`, or the repository directory that `run` is itself.

    Raises:
        UserError: it lacks files, or the run is still going on.
    """
    directory = Path(run, "best") if Path(run, "best").is_dir() else Path(run)
    if missing := [name for name in NEEDED if not (directory / name).is_file()]:
        raise UserError(f"{directory} has no {', '.join(missing)}: give a run directory with a finished best/ in it")
    lost = [name for name in OF_THE_RUN if not Path(run, name).is_file()]
    if lost and directory != Path(run):
        raise UserError(
            f"{run} is not finished, it has no {', '.join(lost)}: run its training command again, it goes on where it "
            "stopped"
        )
    return directory


def hidden(name: str) -> bool:
    """Whether a file or a directory of its path is: Git's own, the Hub's `.gitattributes`."""
    return any(part.startswith(".") for part in name.split("/"))


def _rewrite(link: Path, change: Callable[[str], str]) -> None:
    text = link.read_text(encoding="utf-8")
    link.unlink()
    link.write_text(change(text), encoding="utf-8")


def _without_directories(recipe: str) -> str:
    """Files of the author's machine by their names alone."""
    values = yaml.safe_load(recipe)
    for key, value in values.items():
        if isinstance(value, str) and Path(value).is_absolute():
            values[key] = Path(value).name
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def check_files(staged: Path) -> str:
    """Card metadata, audit, and the checksums of the fingerprint: what can be known without loading anything.

    Returns:
        What was found, on a line.

    Raises:
        UserError: the first thing that is wrong.
    """
    try:
        card = ModelCard((staged / "README.md").read_text(encoding="utf-8")).data.to_dict()
        fingerprint = json.loads((staged / "fingerprint.json").read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"README.md or fingerprint.json cannot be read ({one_line(error)})") from error
    if missing := [key for key in METADATA if not card.get(key)]:
        raise UserError(f"README.md: its metadata has no {', '.join(missing)}")
    if findings := audit(staged):
        raise UserError(f"{len(findings)} finding(s) of csezoo audit, {findings[0].file}: {findings[0].why}")
    if problems := differing_files(staged, fingerprint["files"]):
        raise UserError(f"the files are not those that were saved: {'; '.join(problems)}")
    return f"checked   {len(fingerprint['files'])} checksums, card, audit"


def check_as_a_stranger(staged: Path) -> str:
    """Load and verify in a fresh process that has torch and transformers, but no csezoo, no Hub and no token.

    Returns:
        What was found, on a line.

    Raises:
        UserError: it does not load there, or does not give what it gave when it was saved.
    """
    with tempfile.TemporaryDirectory() as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        environment |= {"HF_HOME": home, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-W", "ignore", "-c", STRANGER, str(staged)]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        *_, last = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"a fresh process without csezoo could not load and verify it ({one_line(Exception(last))})")
    return "checked   token ids and vectors, loaded in a fresh process without csezoo"
