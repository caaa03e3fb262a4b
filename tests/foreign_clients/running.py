"""Runs a client in an environment of its own, and says what became of every setting."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from csezoo.training.publishing.onnx_graph import TOLERANCE
from tests.clean_interpreter import WITHOUT_CSEZOO
from tests.foreign_clients.clients import Client
from tests.foreign_clients.settings import TEXTS, Setting, expected_vectors, longer_than_the_limit
from tests.hub_server import HubServer
from tests.repositories import local_files

SCRIPTS = Path(__file__).parent / "scripts"
# Runs a script as `python SCRIPT` does, in an environment where csezoo can be imported but must not be.
THIS_ENVIRONMENT = f"{WITHOUT_CSEZOO}\nimport runpy\nsys.argv = sys.argv[1:]\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
THIS_ENVIRONMENT += "runpy.run_path(sys.argv[0], run_name='__main__')"
# A shorter vector is zero, such as that of an empty text minus the bias of its prompt.
ZERO = 1e-5
# The folder that a client reads, by its form.
FOLDERS = {"trusted": "repository", "plain": "repository", "onnx": "onnx"}
Found = Mapping[str, Mapping[str, list[list[float]] | str]]


def file_name(*words: str) -> str:
    return re.sub(r"[^\w.]+", "-", "-".join(words))


def environment(packages: Collection[str], directory: Path, npm: bool = False) -> Path:
    """Return the directory with these packages, of pip or of npm; make it if it is not there.

    Raises:
        subprocess.CalledProcessError: a package cannot be installed.
    """
    name = file_name(*sorted(packages))
    made = directory / "environments" / name
    if not made.is_dir():
        partial = made.with_name(f"{name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        if npm:
            partial.mkdir(parents=True)
            install = ["npm", "install", "--ignore-scripts", "--no-audit", "--prefix", partial, *packages]
        else:
            venv.create(partial, with_pip=True)
            install = [partial / "bin" / "python", "-m", "pip", "install", "-q", *packages]
        subprocess.run(install, check=True, capture_output=True)
        partial.rename(made)
    return made


def can_read(client: Client, setting: Setting) -> bool:
    """Return whether a client has what it needs: without the repository's code, a plain encoder or an ONNX file."""
    return client.form != "plain" or not setting.own_code


def run_client(client: Client, directory: Path, names: list[str]) -> tuple[dict[str, str], Found]:
    """Return the versions of a client's packages, and what it made of each group of texts of each repository.

    Args:
        client: the client.
        directory: has the repositories.
        names: of the settings; those that the client can read.

    There is a file for each repository in `results`. One that an earlier run wrote is used again, until the
    repository or the client's packages change.
    """
    repositories, texts = directory / FOLDERS[client.form], directory / "texts.json"
    results = directory / "results" / file_name(client.name, *sorted(client.packages))
    texts.write_text(json.dumps(TEXTS), encoding="utf-8")
    results.mkdir(parents=True, exist_ok=True)
    files = {name: results / f"{name}.json" for name in names}
    if missing := [name for name, file in files.items() if not file.exists()]:
        _run_script(client, directory, [repositories, texts, results], missing)
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    return next(iter(found.values()))["versions"], {name: each["vectors"] for name, each in found.items()}


def _run_script(client: Client, directory: Path, paths: list[Path], names: list[str]) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hf"), "TOKENIZERS_PARALLELISM": "false"}
    command, place = [sys.executable, "-W", "ignore", "-c", THIS_ENVIRONMENT], directory
    if client.npm:
        command, place = ["node"], environment(client.packages, directory, npm=True)
    elif client.packages:
        command = [environment(client.packages, directory) / "bin" / "python", "-W", "ignore"]
    command += [SCRIPTS / client.script, *paths, *names]
    with HubServer() as hub:
        if client.needs_hub:
            shutil.rmtree(directory / "hub-cache", ignore_errors=True)  # of another run's server
            for repository in (paths[0] / name for name in names):
                hub.commit(f"zoo/{repository.name}", "a model", local_files(repository))
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
        settings: those that it got; one without a plain form is left out if the client reads only those.
        found: what the client returned; None if it was read and not run, so that its limits are believed.

    Returns:
        An outcome for each setting, and a line for each difference that no limit explains and each limit that no
        longer shows.
    """
    outcomes, mistakes = {}, []
    for setting in settings:
        if not can_read(client, setting):
            continue
        if found is not None and setting.name not in found:
            mistakes.append(f"{client.name}: {setting.name} is missing")
            continue
        off = dict.fromkeys(TEXTS, 0.0) if found is None else differences(setting, directory, found[setting.name])
        limits = {
            group: next((limit for limit in client.limits if limit.holds(setting, group)), None) for group in off
        }
        for group, limit in limits.items():
            if limit is None and not off[group] <= TOLERANCE:
                returned = (found or {})[setting.name][group]
                said = returned if isinstance(returned, str) else f"off by {off[group]:.1e}"
                mistakes.append(f"{client.name}: {setting.name}, {group}: {said}, and no limit says why")
        declared = {group: limit.because for group, limit in limits.items() if limit is not None}
        if found is not None and declared and max(off[group] for group in declared) <= TOLERANCE:
            mistakes.append(f"{client.name}: {setting.name} is right, against {declared}")
        outcomes[setting.name] = outcome(off, declared, measured=found is not None)
    return outcomes, mistakes


def differences(
    setting: Setting, directory: Path, returned: Mapping[str, list[list[float]] | str]
) -> dict[str, float]:
    """Return the largest difference of unit vectors by group of texts, infinite for an error.

    A text that is longer than the model's limit counts as a long one, whatever its group.
    """
    expected, long = expected_vectors(setting, directory), longer_than_the_limit(setting, directory)
    off = dict.fromkeys(TEXTS, 0.0)
    for group, vectors in returned.items():
        for number, is_long in enumerate(long[group]):
            one = np.inf if isinstance(vectors, str) else difference(vectors[number], expected[group][number])
            off["long" if is_long else group] = max(off["long" if is_long else group], one)
    return off


def difference(returned: list[float], expected: np.ndarray) -> float:
    """Return the largest difference of two unit vectors; infinite if they have another shape or are not numbers."""
    vector = np.array(returned, float)
    if vector.shape != expected.shape or not np.isfinite(vector).all():
        return np.inf
    return float(np.abs(unit(vector) - unit(expected)).max())


def unit(vector: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(vector)
    return np.zeros_like(vector) if norm < ZERO else vector / norm


def outcome(off: dict[str, float], declared: dict[str, str], measured: bool) -> dict:
    """Return the largest difference, and the reason why a client is not right: on all texts, or on some groups."""
    right = [off[group] for group in off if group not in declared]
    found: dict = {"largest": float(f"{max(right):.1g}")} if right and measured else {}
    if declared:
        worst = max(declared, key=lambda group: off[group])
        found["because"] = declared[worst]
        found |= {"difference": float(f"{off[worst]:.1g}")} if measured and off[worst] < np.inf else {}
        found |= {"texts": sorted(declared)} if right else {}
    return found


def badness(outcome: dict) -> tuple[bool, float]:
    return "because" in outcome, outcome.get("largest", 0.0)


def cells(
    clients: list[Client], settings: list[Setting], outcomes: dict[str, dict[str, dict]], versions: dict[str, dict]
) -> dict:
    """Return what `clients.json` has: the clients, and what became of every combination of a setting's properties.

    Methods that differ in training only have the same files; for each client the worst of them counts.
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
    listed = [{"name": client.name, "form": client.form, "versions": versions.get(client.name)} for client in clients]
    return {"texts": sum(map(len, TEXTS.values())), "clients": listed, "cells": list(combined.values())}
