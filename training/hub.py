"""Repositories, on the Hub or as a directory: their files, and the checksums of those."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, HTTPError  # HTTPError: the client library's, whichever it is
from huggingface_hub.utils.sha import sha_fileobj

from .errors import UserError, one_line


def local_directory(repository: str, revision: str | None = None, *, without: str | None = None) -> Path:
    """A directory as it is, or the files of a Hub repository in the cache.

    Args:
        revision: branch, tag or commit on the Hub.
        without: a pattern of files that are not needed.

    Raises:
        UserError: it is neither, or the Hub does not give it.
    """
    if Path(repository).is_dir():
        if revision is not None:
            raise UserError(f"--revision {revision}: {repository} is a directory, which has none")
        return Path(repository)
    try:
        return Path(snapshot_download(repository, revision=revision, ignore_patterns=without))
    except HFValidationError:
        raise UserError(f"{repository} is neither a directory nor a name on the Hub") from None
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(f"{repository} could not be downloaded ({one_line(error)})") from error


def is_inside(name: str) -> bool:
    """Whether a path that a repository names stays within it.

    Example:
        >>> is_inside("1_Pooling/config.json"), is_inside("../other"), is_inside("/etc/passwd")
        (True, False, False)
    """
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def sha256(path: Path) -> str:
    """Checksum of a file of any size."""
    with path.open("rb") as file:
        return sha_fileobj(file).hex()


def differing_files(directory: Path, checksums: dict[str, str]) -> list[str]:
    """What is wrong with the files of a directory, a phrase for each that is not as its checksum says."""
    problems = []
    for name, checksum in checksums.items():
        if not is_inside(name):
            problems.append(f"{name} is outside of the repository")
        elif not (directory / name).is_file():
            problems.append(f"{name} is missing")
        elif sha256(directory / name) != checksum:
            problems.append(f"{name} has another checksum")
    return problems
