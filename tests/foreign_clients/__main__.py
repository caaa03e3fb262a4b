"""What the clients that people use make of a repository: every client, on every setting.

    python -m tests.foreign_clients [DIRECTORY] [--only CLIENT …] [--settings PATTERN …] [--write]

Saves a tiny repository of every setting in DIRECTORY (a temporary one by default), alone and with an ONNX file. Makes
an environment for each client, where csezoo is not installed, and compares the unit vectors of 76 texts with those of
the trained encoder. It stops if a client differs by more than 1e-5 and no limit in `clients.py` says why, or if a
limit no longer shows. `--write` writes `clients.json` beside this file, and its tables to `docs/clients.md`.

What is in DIRECTORY is used again: repositories, environments, and what each client made of each setting. So an
interrupted run continues where it stopped. After a change to the zoo or to a script, take another directory.

Not a test of `pytest`: it installs packages. `test_foreign_clients.py` runs those that install in a minute on a few
settings.
"""

import argparse
import os
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers.utils import logging

from csezoo.training.files import write_json
from tests.foreign_clients.clients import CLIENTS
from tests.foreign_clients.running import can_read, cells, judged, run_client
from tests.foreign_clients.settings import save_all, settings
from tests.foreign_clients.table import PAGE, RESULTS, filled


def main(directory: Path, only: list[str], patterns: list[str], write: bool) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    chosen = [client for client in CLIENTS if not only or client.name in only]
    directory.mkdir(parents=True, exist_ok=True)
    every = [setting for setting in settings() if any(fnmatch(setting.name, pattern) for pattern in patterns)]
    save_all(every, directory)
    outcomes, versions, mistakes = {}, {}, []
    for client in chosen:
        found = None
        if client.script:
            names = [setting.name for setting in every if can_read(client, setting)]
            versions[client.name], found = run_client(client, directory, names)
        outcomes[client.name], wrong = judged(client, every, directory, found)
        mistakes += wrong
        works = sum("because" not in outcome for outcome in outcomes[client.name].values())
        print(f"{client.name}: right on {works} of {len(outcomes[client.name])} settings", flush=True)
    if mistakes:
        raise SystemExit("\n".join(mistakes))
    if write:
        write_json(RESULTS, cells(chosen, every, outcomes, versions))
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        print(RESULTS, PAGE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--only", nargs="+", default=[], choices=[client.name for client in CLIENTS])
    parser.add_argument("--settings", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(sys.argv[1:])
    with tempfile.TemporaryDirectory() as temporary:
        main((options.directory or Path(temporary)).absolute(), options.only, options.settings, options.write)
