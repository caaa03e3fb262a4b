"""Publishing a finished model: a repository directory to the Hub, in one commit."""

from __future__ import annotations

import sys
from json import JSONDecodeError
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError  # HTTPError: the client library's, whichever it is
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import disable_progress_bars

from .errors import UserError

NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "README.md")
PLACEHOLDER = "REPOSITORY"  # how the card calls the repository until it has a name
WAYS_OUT = {
    401: "the token is not valid, log in again with `hf auth login` or set HF_TOKEN",
    403: "the token may not write there, take one that may from https://huggingface.co/settings/tokens",
    404: "check the spelling, and that the token may see the repository",
    412: "somebody else changed it meanwhile, look at it and publish again",
    429: "too many requests, wait and publish again",
}


def publish(run: str, to: str, *, private: bool = False, message: str | None = None) -> str:
    """Make a Hub repository equal to a finished model in one commit, or in none if it already is.

    Hidden files are left alone, here and there: Git's own, the Hub's `.gitattributes`.

    Args:
        run: a run directory with `best/` in it, or a repository directory itself.
        to: `ORG/NAME`, made if it is not there; it takes the placeholder's place on the published card.
        private: make a new repository private; one that is there must be.
        message: of the commit.

    Returns:
        The commit's URL.

    Raises:
        UserError: the directory is no complete repository, the name is none, or the Hub refuses or is out of reach.

    Example:
        `publish("runs/quickstart", "my-name/my-model", private=True)`
    """
    directory = finished_repository(run)
    if "/" not in to:
        raise UserError(f"--to: {to!r} has no owner, give ORG/NAME")
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(library_name="csezoo", token=True)
    try:
        known = _find_or_create(api, to, private)
        if private and known and not known.private:
            raise UserError(f"{to} is public: make it private in its settings on the Hub, or leave --private out")
        commit = api.create_commit(
            to,
            _operations(directory, to, known),
            commit_message=message or "Publish with csezoo",
            parent_commit=known.sha if known else None,  # what to delete was decided from this state
        )
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        raise UserError(_explain(error, to)) from None  # the HTTP library's own errors may quote the token
    return commit.commit_url


def finished_repository(run: str) -> Path:
    """The repository of a finished run, its `best/`, or the repository directory that `run` is itself.

    Raises:
        UserError: it lacks files, or the run is still going on.
    """
    directory = Path(run, "best") if Path(run, "best").is_dir() else Path(run)
    if missing := [name for name in NEEDED if not (directory / name).is_file()]:
        raise UserError(f"{directory} has no {', '.join(missing)}: give a run directory with a finished best/ in it")
    if directory != Path(run) and not Path(run, "results.json").is_file():
        raise UserError(f"{run} is not finished: run its training command again, it goes on where it stopped")
    return directory


def _find_or_create(api: HfApi, to: str, private: bool) -> ModelInfo | None:
    """What the Hub knows of a repository; `None` of a new one."""
    try:
        return api.model_info(to)
    except HfHubHTTPError as error:
        if error.response.status_code not in (401, 404):  # the Hub's ways to say that it is not there
            raise
    api.create_repo(to, private=private or None, exist_ok=True)  # None: as the organisation prefers
    return None


def _operations(directory: Path, to: str, known: ModelInfo | None) -> list[CommitOperationAdd | CommitOperationDelete]:
    """Every file of the directory, and the deletion of what the repository has beyond them."""
    paths = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    files = {name: path for name, path in sorted(paths.items()) if not _hidden(name)}
    files["README.md"] = files["README.md"].read_text(encoding="utf-8").replace(PLACEHOLDER, to).encode()
    there = [file.rfilename for file in known.siblings or []] if known else []
    return [
        *(CommitOperationAdd(name, content) for name, content in files.items()),
        *(CommitOperationDelete(name) for name in there if name not in files and not _hidden(name)),
    ]


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _explain(error: Exception, to: str) -> str:
    """One line with the way out."""
    if isinstance(error, RuntimeError) and error.__cause__:  # the client's, when a file's upload fails
        error = error.__cause__
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        said = _one_line(error.server_message or error.response.reason_phrase)
        way_out = WAYS_OUT.get(status, "publish again later" if status >= 500 else "mend that and publish again")
        return f"the Hub refused {to} with {status} ({said}): {way_out}"
    if isinstance(error, HTTPError | JSONDecodeError):
        return f"{constants.ENDPOINT} is out of reach ({type(error).__name__}): check the network and HF_ENDPOINT"
    return f"{to} was not published: {_one_line(str(error))}"  # the client names the way out itself


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
