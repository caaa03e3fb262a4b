"""Files and directories that are complete or absent, even if the process that writes them is killed."""

from __future__ import annotations

import csv
import errno
import glob
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import UserError, one_line, refuse_bytes, system_error, writing

UNREADABLE = (EOFError, OSError, zlib.error)  # raised for a file or an archive that is damaged


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: a reader finds the old content or the new one.

    The content is written to a hidden file first, which is then renamed. Programs that list the directory skip it.
    """
    refuse_looping_link(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:  # a signal, too, leaves nothing
        partial.unlink(missing_ok=True)
        raise


def refuse_looping_link(path: Path) -> None:
    """Raise the system's error for a link that leads in a circle: there is no such file to replace."""
    if path.is_symlink():
        with suppress(FileNotFoundError):
            os.stat(path)


def replace_directory(partial: Path, target: Path) -> None:
    """Replace the directory `target` by the finished directory `partial`, by renaming; no reader finds half of one.

    A directory with the target's name and `.old` is deleted: use this only where csezoo owns that name too.
    """
    flush(partial)
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def refuse_utf16(path: Path, beginning: bytes) -> None:
    """Refuse a text file in UTF-16: without a byte-order mark, English in it is valid UTF-8, full of NUL."""
    if beginning.count(0) * 4 > len(beginning):
        raise UserError(f"{path}: not UTF-8 (it seems to be UTF-16 or UTF-32); convert the file")


@contextmanager
def long_cells() -> Iterator[None]:
    """Let `csv` read cells of any length inside the context; its own limit is 131,072 characters."""
    limit = csv.field_size_limit(2**31 - 1)  # the largest one that it takes on every machine
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def create_directory(directory: Path, option: str) -> None:
    """Create the directory that an option names, unless it exists, and check that it can be written."""
    with writing(option, directory, "; give another directory"):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()


def empty_target(to: str) -> Path:
    """Return the absolute path of a directory that is to be written. Links are followed: the directory is replaced.

    Raises:
        UserError: it exists and is not an empty directory, or its name is not UTF-8.
    """
    refuse_bytes("--to", to)
    target = Path(os.path.realpath(to))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"--to: {to} is not an empty directory; give a new one, or delete what is in it")
    return target


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Make a directory to write into, which becomes `target` when it is complete, and is deleted after an error.

    Beside `target`, which is from `empty_target`, only what a killed process left of it is deleted.
    """
    with ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):  # by a process that was killed
                if (left / LOCK).is_file() and not locked_elsewhere(left):
                    shutil.rmtree(left, ignore_errors=True)
            hidden = tempfile.TemporaryDirectory(
                prefix=f".{target.name}.", suffix=".partial", dir=target.parent, ignore_cleanup_errors=True
            )
            # Only the owner may enter a temporary directory. A directory inside it has the usual permissions.
            partial = Path(stack.enter_context(hidden), target.name)
            stack.enter_context(locked(partial.parent))
            partial.mkdir()
        except OSError as error:
            raise UserError(f"--to: {target} cannot be created ({one_line(error)}); give another directory") from error
        yield partial
        flush(partial)
        try:
            if target.exists():
                target.rmdir()
            partial.rename(target)
        except OSError as error:
            raise UserError(f"--to: {target} cannot be replaced ({one_line(error)}); give a new directory") from error


def flush(path: Path) -> None:
    """Flush a file, or a directory with all its files, to disk. Call it before the rename that marks it complete.

    Windows opens no directories and flushes no file that is open for reading: there the system writes them later.
    """
    if os.name == "nt":
        return
    for part in (path, *path.rglob("*")):
        descriptor = os.open(part, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def recover_directory(target: Path) -> None:
    """Undo a `replace_directory` that was interrupted between its two renames."""
    old = target.with_name(target.name + ".old")
    if old.exists() and not target.exists():
        old.rename(target)


def remove(path: Path) -> None:
    """Delete a file or a directory, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def report_full_disk(directory: Path) -> Iterator[None]:
    """Turn the error of a full disk or an exceeded quota into one line. What was complete before is unchanged."""
    try:
        yield
    except Exception as error:
        number = system_error(error)
        if number not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f"output_dir: {directory} could not be written ({os.strerror(number)}); free disk space, and "
            "run the same command again to resume from the last complete checkpoint"
        ) from error


LOCK = ".lock"


@contextmanager
def locked(directory: Path, name: str = LOCK, *, wait: bool = False) -> Iterator[None]:
    """Lock a directory for one run. The lock is released when the process ends, however it ends.

    Args:
        name: of the lock file. Locks of different names do not exclude each other.
        wait: wait for the other process, instead of raising an error.
    """
    lock = FileLock(directory / name, is_singleton=True)  # the same process may lock it again
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise in_use_error(directory) from None
    except OSError as error:
        raise UserError(
            f"output_dir: {directory} cannot be written ({one_line(error)}); choose another --output_dir"
        ) from error
    try:
        yield
    finally:
        lock.release()


def refuse_other_file(path: Path, content: str, option: str) -> None:
    """Refuse to replace a file of the user: one without a text that csezoo's file of this name has."""
    if path.exists() and not (path.is_file() and content.encode() in path.read_bytes()):
        raise UserError(f"{option}: {path} was not written by csezoo and would be replaced; give another directory")


def refuse_links_out(directory: Path, *paths: Path, root: Path | None = None) -> None:
    """Refuse links in a directory, or among more paths, that lead out of it, or out of a root."""
    inside = (root or directory).resolve()
    for path in (*directory.rglob("*"), *paths):
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise UserError(
                f"{path} is a link to a place outside of {root or directory}: replace it by a copy, or delete it"
            )


def in_use_error(directory: Path) -> UserError:
    """Return the error that another process is training in a directory."""
    return UserError(
        f"output_dir: another process is training in {directory}; wait for it, or choose another --output_dir"
    )


def locked_elsewhere(directory: Path) -> bool:
    """Return whether another process has locked a directory."""
    if not (directory / LOCK).is_file():
        return False
    lock = FileLock(directory / LOCK, is_singleton=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def read_json(path: Path, kind: type = dict) -> Any:
    """Read a JSON file that contains an object, or a list."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({one_line(error)})") from error
    if not isinstance(content, kind):
        wanted = "object" if kind is dict else "list"
        raise UserError(f"{path}: expected a JSON {wanted}, got {type(content).__name__}")
    return content


def write_json(path: Path, content: object) -> None:
    """Write a JSON file, indented: the complete file or nothing."""
    replace_file(path, json.dumps(content, indent=2) + "\n")
