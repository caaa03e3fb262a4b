"""Stage the files that will be published, and check them as a new user will load them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml
from huggingface_hub import EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml

from ..errors import UserError, one_line
from ..evaluation.tasks.sts import HUB
from ..files import refuse_links_out
from ..hub import differing_files, files_in, is_hidden, refuse_run_or_adapter
from .audit import audit
from .fingerprints import read_fingerprint, unchecked_formats

NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "fingerprint.json", "README.md")
OF_THE_RUN = ("recipe.yaml", "results.json")  # a run that is not finished has no results
EVAL_RESULTS = ".eval_results"
# All files that csezoo may write there, by task; whoever made another one keeps it.
EVAL_FILES = {task: f"{EVAL_RESULTS}/{task}.yaml" for task, (_, _, split) in HUB.items() if split == "test"}
METADATA = ("language", "library_name", "license", "pipeline_tag", "tags")
PLACEHOLDER = "REPOSITORY"  # the repository's name on the card until it is published
STRANGER = """
import sys

sys.modules["csezoo"] = None  # as if it were not installed
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
print(*model.verify(AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)), sep="\\n")
"""


def stage(run: str, to: str, staged: Path) -> None:
    """Stage the files of a run: those of its `best/`, the recipe and the results; or those of a repository directory.

    Files are linked, not copied. Hidden files are left out. `.eval_results` is made from the card.
    """
    directory = finished_repository(run)
    refuse_links_out(directory, *(Path(run, name) for name in ("best", *OF_THE_RUN)), root=Path(run))
    files = files_in(directory)
    if directory != Path(run):
        files |= {name: Path(run, name) for name in OF_THE_RUN if Path(run, name).is_file()}
    for name, path in files.items():
        if not is_hidden(name):
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).symlink_to(path.absolute())
    _rewrite(staged / "README.md", lambda card: card.replace(PLACEHOLDER, to))
    hide_paths(staged)
    write_eval_results(staged)


def hide_paths(staged: Path) -> None:
    """Rewrite a staged recipe and results without the paths of this machine."""
    for name, change in (("recipe.yaml", _public_recipe), ("results.json", _public_results)):
        if (staged / name).is_file():
            _rewrite(staged / name, change)


def finished_repository(run: str, needed: tuple[str, ...] = NEEDED) -> Path:
    """Return the `best/` of a run, or `run` itself if it is a repository directory."""
    directory = Path(run, "best") if Path(run, "best").is_dir() else Path(run)
    refuse_run_or_adapter(directory)
    if missing := [name for name in needed if not (directory / name).is_file()]:
        raise UserError(f"{directory} has no {', '.join(missing)}; give a run directory with a finished best/ in it")
    if directory != Path(run) and not Path(run, "recipe.yaml").is_file():
        raise UserError(f"{run} has no recipe.yaml; give the directory of a run, or {directory}")
    return directory


def write_eval_results(staged: Path) -> None:
    """Write the test results in the card's metadata as the Hub's leaderboards read them, a file for each data set.

    A leaderboard belongs to a data set on the Hub, so results on other data have no file. The ids of its tasks are
    MTEB's.
    """
    for result in cast(ModelCardData, _card(staged).data).eval_results or []:
        dataset, revision, split = HUB.get(result.dataset_name, (None, None, None))
        if (result.dataset_type, result.dataset_revision, split) == (dataset, revision, "test"):
            entry = EvalResultEntry(
                dataset_id=result.dataset_type,
                task_id=f"{result.dataset_name}_default_{split}",
                value=result.metric_value,
                dataset_revision=revision,
                notes="Spearman correlation of cosines x 100, over all pairs, measured with csezoo",
            )
            file = staged / EVAL_FILES[result.dataset_name]
            file.parent.mkdir(exist_ok=True)
            file.write_text(yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False), encoding="utf-8")


def _card(staged: Path) -> ModelCard:
    try:
        return ModelCard((staged / "README.md").read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"README.md cannot be read ({one_line(error)})") from error


def _rewrite(link: Path, change: Callable[[str], str]) -> None:
    try:
        text = change(link.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{link.name} cannot be read ({one_line(error)})") from error
    link.unlink()
    link.write_text(text, encoding="utf-8")


def _public_recipe(recipe: str) -> str:
    return yaml.safe_dump(_without_directories(yaml.safe_load(recipe)), sort_keys=False, allow_unicode=True)


def _public_results(results: str) -> str:
    values = json.loads(results)
    others = {key: value for key, value in values.items() if key != "neighbours"}  # which are sentences
    return json.dumps({**values, **_without_directories(others)}, indent=2) + "\n"


def _without_directories(value: Any) -> Any:
    """Replace absolute paths, which mean nothing on another machine, by the names of the files.

    A text such as `/` or `/query ` is none: a path names a directory of the machine.
    """
    if isinstance(value, dict):
        return {key: _without_directories(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_directories(item) for item in value]
    is_path = isinstance(value, str) and Path(value).is_absolute() and len(Path(value).parts) > 2
    return Path(value).name if is_path else value


def verify_files(staged: Path) -> str:
    """Check card metadata, audit and checksums, without loading the model."""
    card = _card(staged).data.to_dict()
    fingerprint = read_fingerprint(staged, str(staged))
    if missing := [key for key in METADATA if not card.get(key)]:
        raise UserError(f"README.md: its metadata has no {', '.join(missing)}; add what is missing")
    if findings := audit(staged):
        raise UserError(
            f"csezoo audit: {len(findings)} finding(s), the first in {findings[0].file}: {findings[0].why}; run that "
            "command to list them all"
        )
    checksums = fingerprint.get("files", {})  # none if `save_pretrained` wrote the repository
    if problems := differing_files(staged, checksums):
        raise UserError(f"files have changed since they were saved: {'; '.join(problems)}")
    if problems := unchecked_formats(staged, checksums):
        raise UserError(problems[0])
    return f"checked   {len(checksums)} checksums, card, audit"


def verify_as_a_stranger(staged: Path) -> str:
    """Load and verify the model in a new process with torch and transformers, but without csezoo, Hub and token."""
    with tempfile.TemporaryDirectory() as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        environment |= {"HF_HOME": home, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-W", "ignore", "-c", STRANGER, str(staged)]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        *_, last = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"a new process without csezoo cannot load and verify the model ({one_line(last)})")
    return "checked   token ids and vectors, loaded in a new process without csezoo"
