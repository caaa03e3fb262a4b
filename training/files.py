"""Files and directories that are whole or absent, whatever stops the process that writes them."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import UserError, one_line


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file under another name, then give it its own: a reader finds the old content or the new one.

    The other name is hidden: who reads a directory takes no note of it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "results.json")
        >>> replace_file(path, "{}")
        >>> [(file.name, file.read_text()) for file in path.parent.iterdir()]
        [('results.json', '{}')]
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def replace_directory(partial: Path, target: Path) -> None:
    """Put a finished directory in another's place, by renaming: nobody ever finds half of one."""
    flush(partial)
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def flush(path: Path) -> None:
    """Have the disk hold a file, or a directory and every file in it, before a name says that it is whole."""
    for part in (path, *path.rglob("*")):
        descriptor = os.open(part, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def recover_directory(target: Path) -> None:
    """Undo a `replace_directory` that was cut off between its two renamings."""
    old = target.with_name(target.name + ".old")
    if old.exists() and not target.exists():
        old.rename(target)


@contextmanager
def room_for_run(directory: Path) -> Iterator[None]:
    """Say in one line that the disk is full, or the quota used up.

    Raises:
        UserError: it is. What was complete before is as it was.
    """
    try:
        yield
    except Exception as error:  # safetensors and tokenizers have types of their own, and the number in the text
        text = re.search(r"os error (\d+)", str(error))
        number = error.errno if isinstance(error, OSError) else text and int(text[1])
        if number not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f"output_dir: {directory} could not be written, {os.strerror(number)}: make room, and the same command "
            "goes on from the last complete checkpoint"
        ) from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory for one run; the lock goes with the process, however it ends.

    Raises:
        UserError: another process holds it.
    """
    lock = FileLock(directory / ".lock", timeout=0, is_singleton=True)  # the holder may ask for it again
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UserError(
            f"output_dir: another process trains in {directory}: wait for it, or give another --output_dir"
        ) from None
    except OSError as error:
        raise UserError(f"output_dir: {directory} cannot be written ({one_line(error)})") from error
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path, content: object) -> None:
    """Write what a JSON file holds, indented: all of it or nothing."""
    replace_file(path, json.dumps(content, indent=2) + "\n")
