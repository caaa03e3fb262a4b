"""Training in a process of its own that a real fault stops at a chosen place.

The processes are forked from one that has imported the large libraries, so that each costs what it trains.
"""

import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from csezoo.training.train import main
from tests.interpreters import CONTEXT


class Stopped(BaseException):
    """What stops training in the process of a test; nothing in it catches this."""


@dataclass
class AtRecord:
    """Strikes when the training process logs a line with `text`, for the n-th time."""

    text: str
    strike: Callable[[], None]
    occurrence: int = 1

    def install(self) -> None:
        handler = logging.Handler()
        handler.emit = self.emit
        logging.getLogger("csezoo").addHandler(handler)

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.occurrence -= 1
            if self.occurrence == 0:
                self.strike()


def stop() -> None:
    """As far as the disk is concerned a kill, in the process of a test."""
    raise Stopped


def terminate() -> None:
    """What a scheduler does before it takes the machine away."""
    os.kill(os.getpid(), signal.SIGTERM)


def kill_later(seconds: float) -> None:
    """SIGKILL, some seconds later."""
    Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def fill_disk(after: Path) -> None:
    """Once `after` is there, the file system lets no file grow beyond 50 kB. A thread may still be writing it."""
    while not after.exists():
        time.sleep(0.01)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))


@dataclass
class KilledAtFile:
    """Killed (SIGKILL) right before its n-th change of a name in a directory: creation, renaming, removal."""

    directory: Path
    number: int
    seen: int = 0

    def install(self) -> None:
        sys.addaudithook(self.count)

    def count(self, event: str, arguments: tuple) -> None:
        changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
        changes |= event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & os.O_CREAT)
        if changes and str(arguments[0]).startswith(str(self.directory)):
            self.seen += 1
            if self.seen == self.number:
                os.kill(os.getpid(), signal.SIGKILL)


def _train(arguments, fault, log) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    if fault:
        fault.install()
    main(arguments)


def start_in_child(arguments: list[str], log: Path, fault=None):
    """Start the training command in a child that writes its stderr to a file."""
    process = CONTEXT.Process(target=_train, args=(arguments, fault, log))
    process.start()
    return process


def train_in_child(arguments: list[str], tmp_path: Path, fault=None) -> tuple[int, str]:
    """Run the training command in a child; its exit code (negative: a signal) and what it said on stderr."""
    log = tmp_path / "stderr.txt"
    process = start_in_child(arguments, log, fault)
    process.join(timeout=240)
    assert process.exitcode is not None, "still training after four minutes"
    return process.exitcode, log.read_text(encoding="utf-8")
