"""Errors the user can fix, and signals that end the process."""

from __future__ import annotations

import difflib
import errno
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import cast

from .environment import writable_cache


class UserError(Exception):
    """An error the user can fix: one line that names the value and the way out. The command exits with status 2."""


class OutOfTimeError(UserError):
    """A step took too long and cannot be stopped. The command ends the process without waiting for it."""


@contextmanager
def as_user_error() -> Iterator[None]:
    """Raise the ValueError that the modeling side gives for a wrong value as a `UserError`."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


# What a mistake in this package raises. Libraries raise the same, and any other type, for files that they cannot use.
DEFECTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)


def is_defect(error: BaseException) -> bool:
    """Return whether an error is a mistake in this package, and not what a library raises for a broken file."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return isinstance(error, DEFECTS) and str(frame.f_globals.get("__name__")).startswith("csezoo.")


@contextmanager
def library_errors(message: str) -> Iterator[None]:
    """Turn what a library raises for a broken file into one line. A defect of this package keeps its traceback.

    Args:
        message: of the `UserError`, with `{error}` for that of the library.

    Example:
        >>> with library_errors("config.json cannot be read ({error})"):
        ...     int("eight")
        Traceback (most recent call last):
        csezoo.training.errors.UserError: config.json cannot be read (invalid literal for int() with base 10: 'eight')
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_defect(error):
            raise
        raise UserError(message.replace("{error}", one_line(error))) from error


@contextmanager
def writing(option: str, path: object, way_out: str = "") -> Iterator[None]:
    """Turn what the system raises while the path that an option names is written into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{option}: {path} cannot be written ({one_line(error)}){way_out}") from error


def one_line(error: object) -> str:
    """Return a message on one line, cut to 400 characters."""
    return " ".join(str(error).split())[:400]


def quoted(value: object) -> str:
    """Return a value as Python writes it, cut to 100 characters."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:98]} …"


def nearest(name: object, names: Iterable[str], otherwise: str) -> str:
    """Return a question with the name that is most like a wrong one, or what to say if none is."""
    near = difflib.get_close_matches(str(name), list(names), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def refuse_unknown(where: str, entry: Iterable[object], keys: Sequence[str]) -> None:
    """Refuse an entry of a file that has other keys than these."""
    if unknown := set(entry) - set(keys):
        raise UserError(f"{where}: unknown key {min(map(repr, unknown))}; it must be one of {', '.join(keys)}")


def refuse_bytes(where: str, text: str) -> None:
    """Refuse a text or a name with bytes that are not UTF-8, which neither tokenizers nor safetensors take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: {quoted(text)} is not UTF-8; rename the file, or correct the text") from None


def refuse_missing(what: str, *packages: str) -> None:
    """Refuse an option or a command whose packages are not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UserError(f"{what} needs packages that are not installed: pip install {' '.join(missing)}")


# What the user can do about an error of the operating system. Any other one is a defect, and keeps its traceback.
PERMISSIONS = "change its permissions, or give another path"
SPACE = "free disk space, and run the same command again"
WAYS_OUT = {
    errno.EACCES: PERMISSIONS,
    errno.EPERM: PERMISSIONS,
    errno.EROFS: "give a path that can be written",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "give another path",
    errno.ELOOP: "give another path",
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EFBIG: SPACE,
}


def system_error(error: BaseException | None) -> int | None:
    """Return the operating system's number of an error; `None` if it has none."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    text = re.search(r"os error (\d+)", str(error))  # safetensors and tokenizers raise their own types
    return int(text[1]) if text else None


@contextmanager
def exit_with_one_line() -> Iterator[None]:
    """Run a command. What the user can fix, and a signal, end the process with one line and without a traceback.

    The exit status is 2 for an error and 128 + signal for SIGINT (Ctrl-C) and SIGTERM. It is 0 if the reader of the
    output stops early. Characters that the output cannot show become escapes.
    """
    _prepare_output()
    try:
        with _signals_raised(), writable_cache():
            try:
                yield
            finally:
                sys.stdout.flush()  # here at the latest, a full disk is an error
        return
    except OutOfTimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)  # an exit would wait for the threads that wait for the Hub
    except Terminated as stopped:
        print(f"stopped by a signal: {stopped.way_on}", file=sys.stderr)
        raise
    except BrokenPipeError:  # the reader has stopped, as in `csezoo recipes | head -2`
        _discard_output()
        return
    except UserError as error:
        message = str(error)
    except Exception as error:
        found = _fixable(error)
        if found is None:
            raise
        message = found
        _discard_output()
    print("error:", " ".join(message.splitlines()), file=sys.stderr)  # a name in it may have line breaks
    raise SystemExit(2)


def _fixable(error: Exception) -> str | None:
    """Return what the user can do about an error that no part of the package has explained; `None` for a defect."""
    if isinstance(error, UnicodeEncodeError) and any("\ud800" <= character <= "\udfff" for character in error.object):
        return f"{quoted(error.object)} is not UTF-8; rename the file, or correct the text"
    if isinstance(error, RuntimeError) and system_error(error.__context__) == errno.ELOOP:
        # pathlib raises its own type for links in a circle, up to Python 3.12.
        error = cast(OSError, error.__context__)
    number, file = system_error(error), getattr(error, "filename", None)
    if number == errno.ENAMETOOLONG:
        return f"{quoted(file)} is too long for the name of a file; give a shorter one"
    if number not in WAYS_OUT:
        return None
    what = f"{quoted(file)}: {os.strerror(number)}" if file else one_line(error)  # the output has no name
    return f"{what}; {WAYS_OUT[number]}"


def _prepare_output() -> None:
    """Let every character be written to the output, whatever its encoding, also if it is closed (`>&-`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Drop what cannot be written, so that the flush at the interpreter's exit does not fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _signals_raised() -> Iterator[None]:
    """Raise `Terminated` for SIGINT and SIGTERM, unless the process was started to ignore them (`nohup`, `&`)."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # only the main thread receives signals
    before = {number: signal.signal(number, terminate) for number in numbers}
    hook = sys.unraisablehook
    sys.unraisablehook = partial(_raise_again, hook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_again(hook: Callable[[sys.UnraisableHookArgs], object], ignored: sys.UnraisableHookArgs) -> None:
    """Send a signal again, a moment later, that came inside a finaliser: Python ignores what is raised there."""
    if isinstance(ignored.exc_value, Terminated):
        again = threading.Timer(0.05, os.kill, (os.getpid(), ignored.exc_value.number))
        again.daemon = True
        again.start()
    else:
        hook(ignored)


class Terminated(SystemExit):
    """The exit of a process that a signal (SIGTERM, SIGINT) asked to end, with the shell's status 128 + signal.

    `way_on` is how the user goes on.
    """

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.number = number
        self.way_on = "run the same command again; it keeps what is already complete"


def terminate(number: int, frame: FrameType | None) -> None:
    """End the process with `Terminated`: a handler for `signal.signal`."""
    raise Terminated(number)


def others(names: Iterable[str]) -> str:
    """Return the names of what has changed, each with "another", or "other" in the plural.

    Example:
        >>> others(["recipe", "processes"])
        'another recipe, other processes'
    """
    return ", ".join(f"{'other' if name.endswith('s') else 'another'} {name}" for name in names)
