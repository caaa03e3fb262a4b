"""Errors the user can fix, and signals that end the process."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


class UserError(Exception):
    """An error the user can fix: one line that names the value and the way out. The command exits with status 2."""


class OutOfTimeError(UserError):
    """A step took too long and cannot be stopped. The command ends the process without waiting for it."""


def one_line(error: BaseException) -> str:
    r"""Return a message on one line, cut to 400 characters.

    Example:
        >>> one_line(ValueError("no such\n  thing"))
        'no such thing'
    """
    return " ".join(str(error).split())[:400]


def quoted(value: object) -> str:
    """Return a value as Python writes it, cut to 100 characters.

    Example:
        >>> quoted("a"), len(quoted("a" * 1000))
        ("'a'", 100)
    """
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:98]} …"


def refuse_unknown(where: str, entry: Iterable[object], keys: Sequence[str]) -> None:
    """Refuse an entry of a file that has other keys than these.

    Example:
        >>> refuse_unknown("a.yaml: row", {"nmae": "cat"}, ["name"])
        Traceback (most recent call last):
        csezoo.training.errors.UserError: a.yaml: row: unknown key 'nmae'; it must be one of name
    """
    if unknown := set(entry) - set(keys):
        raise UserError(f"{where}: unknown key {min(map(repr, unknown))}; it must be one of {', '.join(keys)}")


@contextmanager
def exit_with_one_line() -> Iterator[None]:
    """End the process with one line and exit status 2 for an error that the user can fix.

    A name that is too long for a file is one of these, whatever reads or writes the file.
    """
    try:
        yield
    except OutOfTimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(2)  # an exit would wait for the threads that wait for the Hub
    except UserError as error:
        message = str(error)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        message = f"{quoted(error.filename)} is too long for the name of a file; give a shorter one"
    else:
        return
    print("error:", " ".join(message.splitlines()), file=sys.stderr)  # a name in it may have line breaks
    raise SystemExit(2)


class Terminated(SystemExit):
    """The exit of a process that a signal (SIGTERM, SIGINT) asked to end, with the shell's status 128 + signal.

    Example:
        >>> Terminated(15).code
        143
    """

    def __init__(self, signal: int):
        super().__init__(128 + signal)


def terminate(number: int, frame: FrameType | None) -> None:
    """End the process with `Terminated`: a handler for `signal.signal`."""
    raise Terminated(number)
