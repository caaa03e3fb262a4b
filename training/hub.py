"""Repositories on the Hub or in a directory: their files and checksums."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download

# HTTPError is that of the HTTP client that huggingface_hub uses.
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError
from huggingface_hub.utils.sha import sha_fileobj

from .errors import UserError, one_line

if TYPE_CHECKING:
    import datasets


def local_directory(
    repository: str, revision: str | None = None, *, only: list[str] | None = None, without: str | None = None
) -> Path:
    """Return a local directory unchanged, or download a Hub repository and return its directory in the cache.

    Args:
        repository: directory or Hub id.
        revision: branch, tag or commit on the Hub.
        only: patterns of the files to download; all by default.
        without: a pattern of files to leave out.

    Raises:
        UserError: it is neither a directory nor a Hub id, or the download fails.
    """
    if os.path.isdir(repository):  # false for a name that is too long, where Path raises
        if revision is not None:
            raise UserError(
                f"--revision {revision}: {repository} is a local directory, which has no revisions; omit the option"
            )
        return Path(repository)
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=only, ignore_patterns=without))
    except HFValidationError:
        raise UserError(f"{repository} is neither a directory nor a valid name on the Hub") from None
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(f"{repository} could not be downloaded ({one_line(error)})") from error


@cache
def answers(repository: str, endpoint: str) -> bool:
    """Ask the Hub once whether it answers for a repository. A download would ask six times, for half a minute.

    Args:
        repository: Hub id; it need not exist.
        endpoint: of the Hub, `huggingface_hub.constants.ENDPOINT`.
    """
    try:
        get_hf_file_metadata(hf_hub_url(repository, "config.json", endpoint=endpoint))
    except HfHubHTTPError:
        return True
    except (HTTPError, OSError):
        return False
    return True


def load_rows(
    task: str, repository: str, config: str | None, *, split: str, revision: str, instead: str
) -> datasets.Dataset:
    """Load a split of a data set on the Hub.

    Args:
        task: its name, for the error.
        repository, config, split, revision: of the data set.
        instead: what to do if the Hub cannot be reached, for the error.

    Raises:
        UserError: the data set cannot be loaded.
    """
    import datasets  # it takes half a second, and only this function needs it

    try:
        return datasets.load_dataset(repository, config, split=split, revision=revision)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{task}: {repository} could not be loaded from the Hub ({type(error).__name__}); {instead}"
        ) from error


def is_inside(name: str) -> bool:
    """Return whether a path named by a repository stays inside the repository.

    Example:
        >>> is_inside("1_Pooling/config.json"), is_inside("../other"), is_inside("/etc/passwd")
        (True, False, False)
    """
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    with path.open("rb") as file:
        return sha_fileobj(file).hex()


def differing_files(directory: Path, checksums: dict[str, str]) -> list[str]:
    """Return a phrase for each file that is missing, outside of the directory, or does not match its checksum."""
    problems = []
    for name, checksum in checksums.items():
        if not is_inside(name):
            problems.append(f"{name} is outside of the repository")
        elif not (directory / name).is_file():
            problems.append(f"{name} is missing")
        elif sha256(directory / name) != checksum:
            problems.append(f"{name} has another checksum")
    return problems
