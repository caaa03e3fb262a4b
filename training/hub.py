"""Repositories on the Hub or in a directory: their files and checksums."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # its own type in Python 3.10
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from huggingface_hub import (
    ModelCard,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)

# HTTPError is that of the HTTP client that huggingface_hub uses.
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
)
from huggingface_hub.utils.sha import sha_fileobj

from .errors import OutOfTimeError, UserError, library_errors, one_line, quoted
from .files import read_json

if TYPE_CHECKING:
    import datasets

Result = TypeVar("Result")
FIRST_FILE = {"model": "config.json", "dataset": "README.md"}  # what a client asks for first


def local_directory(
    repository: str, revision: str | None = None, *, only: list[str] | None = None, ignored: str | None = None
) -> Path:
    """Return a local directory unchanged, or download a Hub repository and return its directory in the cache.

    Args:
        only: patterns of the files to download; all by default.
        ignored: a pattern of files to leave out.

    Raises:
        UserError: it is neither a directory nor a Hub id, or the download fails or takes too long.
    """
    if os.path.isdir(repository):  # false for a name that is too long, where Path raises
        if revision is not None:
            raise UserError(
                f"--revision {revision}: {repository} is a local directory, which has no revisions; omit the option"
            )
        return Path(repository)
    patterns = {"allow_patterns": only, "ignore_patterns": ignored}
    try:
        download = partial(snapshot_download, repository, revision=revision, **patterns)
        return Path(within_time(f"the download of {repository}", download))
    except HFValidationError:
        raise UserError(
            f"{repository} is neither a directory nor a valid name on the Hub; give a directory or ORG/NAME"
        ) from None
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(
            f"{repository} could not be downloaded ({one_line(error)}); check the name and the network, and "
            "log in with `hf auth login` if it is private"
        ) from error


def refuse_run(directory: str | Path) -> None:
    """Refuse the directory of a run where a repository is expected."""
    path = Path(directory)
    if os.path.isdir(path / "best") and not os.path.isfile(path / "config.json"):
        raise UserError(f"{directory} is a run; give {directory}/best")


def refuse_run_or_adapter(directory: str | Path, name: str = "") -> None:
    """Refuse the directory of a run, or an adapter, where a repository is expected.

    Args:
        name: of the repository, if it was downloaded into the directory.
    """
    refuse_run(directory)
    path, shown = Path(directory), name or directory
    if os.path.isfile(path / "adapter_config.json") and not os.path.isfile(path / "config.json"):
        raise UserError(f"{shown} is an adapter; `csezoo merge {shown} --to DIR` makes the model")


def repository_file(repository: str, name: str, revision: str | None = None) -> Path | None:
    """Return the path of a file in a directory or Hub repository, or None if it does not exist.

    Raises:
        UserError: the repository could not be reached.
    """
    if os.path.isdir(repository):  # false for a name that is too long, where Path raises
        path = Path(repository) / name
        return path if path.is_file() else None
    try:
        offline = not answers(repository, constants.ENDPOINT)
        return Path(hf_hub_download(repository, name, revision=revision, local_files_only=offline))
    except LocalEntryNotFoundError as error:  # an EntryNotFoundError, but the Hub may have the file
        if offline:
            return None
        raise UserError(f"{repository} could not be reached: {one_line(error.__cause__ or error)}") from error
    except (EntryNotFoundError, HFValidationError):
        return None
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(f"{repository} could not be reached: {one_line(error)}") from error


def listed_modules(repository: str, revision: str | None = None) -> list[dict[str, Any]]:
    """Return the modules that a repository of sentence-transformers lists, each with a type and a path; else none.

    Raises:
        UserError: it lists something else, or a path outside of it.
    """
    file = repository_file(repository, "modules.json", revision)
    modules = read_json(file, list) if file else []
    for module in modules:
        if not (isinstance(module, dict) and isinstance(module.get("type"), str) and is_inside(module.get("path"))):
            raise UserError(f"{repository}: modules.json has {quoted(module)}, which is no module in it")
    return modules


def stated_in_card(repository: str, revision: str | None = None) -> dict[str, str]:
    """Return the license and the language that the card of a repository states, each if it is a single one."""
    readme = repository_file(repository, "README.md", revision)
    try:
        with library_errors("{error}"):
            data = ModelCard.load(readme).data.to_dict() if readme else {}
    except UserError:
        return {}  # metadata that is not valid says nothing
    listed = {key: data.get(key) for key in ("license", "language")}
    single = {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in listed.items()}
    return {key: value for key, value in single.items() if isinstance(value, str)}


def may_exist(repository: str, name: str, revision: str | None = None) -> bool:
    """Return whether a Hub repository may have a file that `repository_file` does not find.

    The Hub does not answer then, and the cache has never asked for the file.
    """
    if os.path.isdir(repository):
        return False
    try:
        unknown = try_to_load_from_cache(repository, name, revision=revision) is None
        return unknown and not answers(repository, constants.ENDPOINT)
    except HFValidationError:
        return False


def within_time(what: str, step: Callable[[], Result]) -> Result:
    """Run a step that waits for the Hub, with a limit on its total time, and return what it returns.

    The client's own limits are for each read. A server that sends a byte now and then, or asks for a retry in a year,
    stays within them for ever. The step is run in a thread, which is left behind when the time is over.

    Raises:
        OutOfTimeError: it took longer than `CSEZOO_HUB_TIMEOUT` seconds, an hour by default.
        UserError: that variable is not a number of seconds.
    """
    given = os.environ.get("CSEZOO_HUB_TIMEOUT", "3600")
    try:
        limit = float(given)
    except ValueError:
        limit = math.nan
    if not 0 < limit <= threading.TIMEOUT_MAX:
        raise UserError(f"CSEZOO_HUB_TIMEOUT: {given!r} must be a number of seconds above 0")
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(step())
        except BaseException as error:  # raised again below
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return done.result(limit)
    except FutureTimeoutError:
        if done.done():  # the step itself raised one
            raise
        raise OutOfTimeError(
            f"{what} took longer than {limit:g} seconds; check the network, or set CSEZOO_HUB_TIMEOUT to more seconds"
        ) from None


@cache
def answers(repository: str, endpoint: str, kind: str = "model") -> bool:
    """Ask the Hub once whether it answers for a repository, which need not exist.

    A download would ask six times, for half a minute.

    Raises:
        HFValidationError: the repository is no valid Hub id.
    """
    try:
        url = hf_hub_url(repository, FIRST_FILE[kind], repo_type=kind, endpoint=endpoint)
        within_time(f"the request for {repository}", lambda: get_hf_file_metadata(url))
    except HfHubHTTPError:
        return True
    except (HTTPError, OSError):
        return False
    return True


def cached_data(repository: str, revision: str | None) -> Path | None:
    """Return the directory of a data set in the cache if the Hub does not answer; None if it does.

    Raises:
        ConnectionError: the Hub does not answer, and the cache has no copy.
        HFValidationError: the repository is no valid Hub id.
    """
    if answers(repository, constants.ENDPOINT, "dataset"):
        return None
    try:
        return Path(snapshot_download(repository, repo_type="dataset", revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        raise ConnectionError(f"{constants.ENDPOINT} does not answer, and the cache has no copy") from None


def load_rows(
    task: str, repository: str, config: str | None, *, split: str, revision: str, instead: str
) -> datasets.Dataset:
    """Load a split of a data set on the Hub; the error names the task, and what to do `instead`.

    If the Hub does not answer, `datasets` reads its cache at once; it would ask six times before.
    """
    import datasets  # it takes half a second, and only this function needs it

    offline = datasets.config.HF_HUB_OFFLINE
    try:
        datasets.config.HF_HUB_OFFLINE = offline or not answers(repository, constants.ENDPOINT, "dataset")
        return datasets.load_dataset(repository, config, split=split, revision=revision)
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(
            f"{task}: {repository} could not be loaded from the Hub ({type(error).__name__}); {instead}"
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline


def is_inside(name: object) -> bool:
    """Return whether a path named by a repository stays inside the repository."""
    return isinstance(name, str) and not Path(name).is_absolute() and ".." not in Path(name).parts


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    with path.open("rb") as file:
        return sha_fileobj(file).hex()


def files_sha256(files: Iterable[str]) -> str:
    """Return one SHA-256 for the contents of several files."""
    return hashlib.sha256("".join(sha256(Path(file)) for file in files).encode()).hexdigest()


def files_in(directory: Path) -> dict[str, Path]:
    """Return all files in a directory, by their names in a repository."""
    return {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*")) if path.is_file()}


def added_files(directory: Path, known: Iterable[str]) -> list[str]:
    """Return a phrase for each file in a directory that is not known and not hidden."""
    names = (path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if not path.is_dir())
    return [f"{name} was added" for name in names if name not in known and not is_hidden(name)]


def is_hidden(name: str) -> bool:
    """Return whether a part of a path starts with a dot, as `.gitattributes` on the Hub does."""
    return any(part.startswith(".") for part in name.split("/"))


def differing_files(directory: Path, checksums: dict[str, str]) -> list[str]:
    """Return a phrase for each file that is missing, outside of the directory, or does not match its checksum."""
    problems = []
    for name, checksum in checksums.items():
        if not is_inside(name):
            problems.append(f"{name} is outside of the repository")
        else:
            try:
                if not (directory / name).is_file():
                    problems.append(f"{name} is missing")
                elif sha256(directory / name) != checksum:
                    problems.append(f"{name} has another checksum")
            except OSError as error:
                problems.append(f"{name} cannot be read ({error.strerror})")
    return problems


def unreadable_directories(directory: Path) -> list[str]:
    """Return a phrase for each directory whose files cannot be listed or read; `rglob` says nothing of them."""
    inside = [os.path.join(top, name) for top, names, _ in os.walk(directory) for name in names]
    return [f"{path} cannot be read" for path in (str(directory), *inside) if not os.access(path, os.R_OK | os.X_OK)]
