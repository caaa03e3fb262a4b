"""Runs a client in an environment of its own, and says what became of every setting."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from csezoo.training.publishing.onnx_graph import TOLERANCE
from tests.clean_interpreter import WITHOUT_CSEZOO
from tests.foreign_clients.clients import Client
from tests.foreign_clients.settings import TEXTS, Setting, expected_vectors
from tests.hub_server import HubServer

SCRIPTS = Path(__file__).parent / "scripts"
# Runs a script as `python SCRIPT` does, in an environment where csezoo can be imported but must not be.
THIS_ENVIRONMENT = f"{WITHOUT_CSEZOO}\nimport runpy\nsys.argv = sys.argv[1:]\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
THIS_ENVIRONMENT += "runpy.run_path(sys.argv[0], run_name='__main__')"
# A shorter vector is zero, such as that of an empty text minus the bias of its prompt.
ZERO = 1e-5
Found = Mapping[str, Mapping[str, list[list[float]] | str]]


def file_name(*words: str) -> str:
    return re.sub(r"[^\w.]+", "-", "-".join(words))


def environment(client: Client, directory: Path) -> Path:
    """Return the directory with a client's packages; make it if it is not there.

    Raises:
        subprocess.CalledProcessError: a package cannot be installed.
    """
    name = file_name(*sorted(client.packages))
    made = directory / "environments" / name
    if not made.is_dir():
        partial = made.with_name(f"{name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        if client.script.endswith(".mjs"):
            partial.mkdir(parents=True)
            install = ["npm", "install", "--ignore-scripts", "--no-audit", "--prefix", partial, *client.packages]
        else:
            venv.create(partial, with_pip=True)
            install = [partial / "bin" / "python", "-m", "pip", "install", "-q", *client.packages]
        subprocess.run(install, check=True, capture_output=True)
        partial.rename(made)
    return made


def run_client(client: Client, directory: Path, names: list[str]) -> tuple[dict[str, str], Found]:
    """Return the versions of a client's packages, and what it made of each group of texts of each export.

    Args:
        client: the client.
        directory: has the exports.
        names: of the settings; one without this form of export is left out.

    There is a file for each export in `results`. One that an earlier run wrote is used again, until the export or the
    client's packages change.
    """
    exports, texts = directory / client.form, directory / "texts.json"
    results = directory / "results" / file_name(client.name, *sorted(client.packages))
    texts.write_text(json.dumps(TEXTS), encoding="utf-8")
    results.mkdir(parents=True, exist_ok=True)
    files = {name: results / f"{name}.json" for name in names if (exports / name).exists()}
    if not all(file.exists() for file in files.values()):
        _run_script(client, directory, [exports, texts, results])
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    return next(iter(found.values()))["versions"], {name: each["vectors"] for name, each in found.items()}


def _run_script(client: Client, directory: Path, arguments: list[Path]) -> None:
    exports = arguments[0]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hf"), "TOKENIZERS_PARALLELISM": "false"}
    if not client.packages:
        command, place = [sys.executable, "-W", "ignore", "-c", THIS_ENVIRONMENT], directory
    elif client.script.endswith(".mjs"):
        command, place = ["node"], environment(client, directory)
    else:
        command, place = [environment(client, directory) / "bin" / "python", "-W", "ignore"], directory
    command += [SCRIPTS / client.script, *arguments]
    with HubServer() as hub:
        if client.needs_hub:
            shutil.rmtree(directory / "hub-cache", ignore_errors=True)  # of another run's server
            for export in exports.iterdir():
                files = [path for path in export.rglob("*") if path.is_file()]
                content = {path.relative_to(export).as_posix(): path.read_bytes() for path in files}
                hub.commit(f"zoo/{export.name}", "an export", content)
            variables |= {**hub.environment(directory / "hub-cache"), "REPOSITORIES": "zoo"}
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{client.name}: {done.stderr[-2000:]}")


def judged(
    client: Client, settings: list[Setting], directory: Path, found: Found | None
) -> tuple[dict[str, dict], list[str]]:
    """Compare what a client returned with the checkpoints' vectors, and with the limits declared for it.

    Args:
        client: the client.
        settings: those whose exports it got; one without this form of export is left out.
        found: what the client returned; None if it was read and not run, so that its limits are believed.

    Returns:
        An outcome for each setting, and a line for each difference that no limit explains and each limit that no
        longer shows.
    """
    outcomes, mistakes = {}, []
    for setting in settings:
        if setting.own_code and client.form == "plain":
            continue
        if found is not None and setting.name not in found:
            mistakes.append(f"{client.name}: {setting.name} is missing")
            continue
        expected = expected_vectors(setting, directory) if found is not None else {}
        differences: dict[str, float] = {}
        exceptions: dict[str, dict] = {}
        for group in TEXTS:
            limit = next((limit for limit in client.limits if limit.holds(setting, group)), None)
            returned = found[setting.name][group] if found is not None else None
            refused = isinstance(returned, str)
            off = 0.0 if found is None else np.inf if refused else difference(returned, expected[group])
            if found is None and limit is None or off <= TOLERANCE and limit is None:
                differences[group] = off
                continue
            if limit is None:
                words = returned if refused else f"off by {off:.1e}"
                mistakes.append(f"{client.name}: {setting.name}, {group}: {words}, and no limit says why")
                continue
            exceptions[group] = {"because": limit.because}
            if found is not None:
                exceptions[group] |= {"refuses": True} if refused else {"difference": float(f"{off:.1g}")}
        declared = [limit for limit in client.limits if any(limit.holds(setting, group) for group in TEXTS)]
        if found is not None and declared and max(map(off_by, exceptions.values())) <= TOLERANCE:
            mistakes.append(f"{client.name}: {setting.name} is right, against {declared[0].because!r}")
        outcomes[setting.name] = outcome(differences, exceptions, measured=found is not None)
    return outcomes, mistakes


def off_by(exception: dict) -> float:
    return exception.get("difference", np.inf)


def difference(returned: list[list[float]], expected: np.ndarray) -> float:
    """Return the largest difference of unit vectors; infinite if they have another shape or are not numbers."""
    vectors = np.array(returned, float)
    if vectors.shape != expected.shape or not np.isfinite(vectors).all():
        return np.inf
    return float(np.abs(unit(vectors) - unit(expected)).max())


def unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(norms < ZERO, 0, vectors / np.maximum(norms, ZERO))


def outcome(differences: dict[str, float], exceptions: dict[str, dict], measured: bool) -> dict:
    """Return the largest difference, and the reason why a client is not right: on all texts, or on some groups."""
    largest = {"largest": float(f"{max(differences.values()):.1g}")} if differences and measured else {}
    if not exceptions:
        return largest
    worst = max(exceptions.values(), key=off_by)
    wrong = {key: value for key, value in worst.items() if value != np.inf}
    return largest | wrong | ({"texts": sorted(exceptions)} if differences else {})


def badness(outcome: dict) -> tuple[bool, float]:
    return "because" in outcome, outcome.get("largest", 0.0)


def cells(
    clients: list[Client], settings: list[Setting], outcomes: dict[str, dict[str, dict]], versions: dict[str, dict]
) -> dict:
    """Return what `clients.json` has: the clients, and what became of every combination of a setting's properties.

    Methods that differ in training only have the same exports; for each client the worst of them counts.
    """
    combined: dict[tuple, dict] = {}
    for setting in settings:
        key = (
            setting.config.backbone_config.model_type,
            setting.pooling,
            setting.projection,
            setting.whitened,
            setting.own_code,
        )
        names = ("kind", "pooling", "projection", "whitened", "own_code")
        cell = combined.setdefault(key, {**dict(zip(names, key, strict=True)), "settings": [], "clients": {}})
        cell["settings"].append(setting.name)
        for client in clients:
            if (found := outcomes[client.name].get(setting.name)) is not None:
                so_far = cell["clients"].get(client.name, found)
                cell["clients"][client.name] = max(so_far, found, key=badness)
    listed = [
        {"name": client.name, "form": client.form, "use": client.use, "versions": versions.get(client.name)}
        for client in clients
    ]
    return {"texts": sum(map(len, TEXTS.values())), "clients": listed, "cells": list(combined.values())}
