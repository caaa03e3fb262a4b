"""Whether a published repository gives the same vectors under other versions of its libraries.

    python -m tests.across_versions [DIRECTORY]

Saves a tiny repository of every method and setting with the versions of this environment. For each other version of
transformers or sentence-transformers it makes a virtual environment in DIRECTORY (a temporary one by default; one that
is there is used again), where neither csezoo nor peft is installed, and opens all of them by every door: `AutoModel`
with trust, `AutoModel` and `AutoTokenizer` without, and `SentenceTransformer` without and with trust. No door may ask
a question. Not a test of `pytest`: it installs packages.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import transformers
from packaging.version import Version
from tqdm import tqdm
from transformers.utils import logging

from csezoo.modeling.contrastive.published import load_published
from tests.conftest import SENTENCES
from tests.foreign_clients.clients import TORCH
from tests.foreign_clients.running import environment, file_name
from tests.methods import CONFIGS
from tests.repositories import PROMPT, tiny_repository

OTHERS = ("4.57.6", "5.20.2", "5.24.0")  # the last of 4.x, and the oldest and newest that setup.cfg admits
TOO_OLD = "4.56.2"
# Versions of sentence-transformers, each with a version of transformers that it admits.
SENTENCE_TRANSFORMERS = {"3.0.1": "4.57.6", "4.1.0": "4.57.6", "5.3.0": "4.57.6", "5.4.0": "4.57.6", "6.2.0": "5.24.0"}
OLDEST_FOR_OWN_FORM = "5.4.0"  # of sentence-transformers, for a repository without a plain form
TOLERANCE = 1e-5
SETTINGS = {
    **CONFIGS,
    "simcse-prompt": PROMPT,
    "simcse-denoised": {**PROMPT, "denoise": "always"},
    "simcse-two-layers": {"pooling": "first_last_mean"},
    "simcse-kept": {"projection": "batchnorm", "projection_at_test": True, "whitening_size": 8},
    "simcse-wk": {"pooling": "wk"},
    "diffaug-prompt": {**PROMPT, "denoise": "always", "denoise_length_offset": 0},
}
TEXTS = ["", "zebra 🙂", *SENTENCES[:6], " ".join(SENTENCES[:20])]
LOAD = f"""
import builtins, json, sys
from pathlib import Path
import torch
from transformers import AutoModel, AutoTokenizer

questions, vectors = [], {{}}
builtins.input = lambda question: questions.append(question) or "n"
for path in sorted(Path(sys.argv[1]).iterdir()):
    plain = (path / "1_Pooling").exists()
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=not plain)
    batch = tokenizer({TEXTS}, padding=True, truncation=True, return_tensors="pt")
    model = AutoModel.from_pretrained(path, trust_remote_code=True)
    model.verify()
    with torch.no_grad():
        output = model(**batch)
        if plain:
            encoder, info = AutoModel.from_pretrained(path, output_loading_info=True)
            assert type(encoder).__module__.startswith("transformers."), type(encoder)
            assert not any(info.values()), info
            torch.testing.assert_close(encoder.eval()(**batch).last_hidden_state, output.last_hidden_state)
    vectors[path.name] = [model.encode({TEXTS}).tolist(), output.pooler_output.tolist()]
assert not questions, questions
print(json.dumps(vectors))
"""
ENCODE = f"""
import json, sys
from pathlib import Path
from sentence_transformers import SentenceTransformer

vectors = {{}}
for path in sorted(Path(sys.argv[1]).iterdir()):
    encoder = SentenceTransformer(str(path), device="cpu"TRUST)
    vectors[path.name] = encoder.encode({TEXTS}).tolist()
print(json.dumps(vectors))
"""


def main(directory: Path) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    plain, own = (directory / form / transformers.__version__ for form in ("plain", "own"))
    expected = save_all(plain, own)
    for version in OTHERS:
        for name, models in (("plain", plain), ("own form", own)):
            done = run(directory, {"transformers": version}, LOAD, models)
            compare(f"transformers {version}, {name}", done, expected[models])
    done = run(directory, {"transformers": TOO_OLD}, LOAD, plain)
    refuse(f"transformers {TOO_OLD}", done, "transformers>=4.57 is required")
    for version, of_transformers in SENTENCE_TRANSFORMERS.items():
        packages = {"sentence-transformers": version, "transformers": of_transformers}
        for name, trust, models in (
            ("plain", "", plain),
            ("plain, with trust", ", trust_remote_code=True", plain),
            ("own form, with trust", ", trust_remote_code=True", own),
        ):
            done = run(directory, packages, ENCODE.replace("TRUST", trust), models)
            title = f"sentence-transformers {version}, {name}"
            if models == own and Version(version) < Version(OLDEST_FOR_OWN_FORM):
                refuse(title, done, f"version {OLDEST_FOR_OWN_FORM}")
            else:
                compare(title, done, expected[models])


def save_all(plain: Path, own: Path) -> dict[Path, dict[str, np.ndarray]]:
    """Save the repositories that are plain encoders, and the others; return the vectors of each."""
    expected: dict[Path, dict[str, np.ndarray]] = {plain: {}, own: {}}
    for path in expected:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    cells = [(name, kind) for name in SETTINGS for kind in ("bert", "roberta")]
    for name, kind in tqdm(cells, desc="Saving", disable=not sys.stderr.isatty()):
        path = tiny_repository(plain / f"{name}-{kind}", name.split("-")[0], kind, **SETTINGS[name])
        model = load_published(path)
        if not model.config.is_plain:
            path.rename(own / path.name)
        expected[plain if model.config.is_plain else own][path.name] = model.encode(TEXTS)
    return expected


def compare(name: str, done: subprocess.CompletedProcess, expected: dict[str, np.ndarray]) -> None:
    """Print how far the vectors of a process are from the expected ones, and stop if that is too far."""
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    distances = {model: np.abs(np.array(vectors) - expected[model]).max() for model, vectors in found.items()}
    worst = max(distances, key=distances.get)
    print(f"{name}: {len(found)} models, off by {distances[worst]:.1e} at most ({worst})")
    if not found.keys() == expected.keys() or not distances[worst] <= TOLERANCE:
        raise SystemExit(f"{name}: {TOLERANCE:g} is allowed")


def refuse(name: str, done: subprocess.CompletedProcess, reason: str) -> None:
    """Print the line with which a process refuses to load a model, and stop if there is none."""
    lines = [line for line in done.stderr.splitlines() if reason in line]
    if done.returncode == 0 or not lines:
        raise SystemExit(f"{name} should be refused with {reason!r}: {done.stderr[-2000:]}")
    print(f"{name}: {lines[0]}")


def run(directory: Path, versions: dict[str, str], code: str, models: Path) -> subprocess.CompletedProcess:
    """Run code on a directory of models in an environment with these versions, which is made if it is not there."""
    packages = [TORCH, "numpy", *(f"{package}=={version}" for package, version in versions.items())]
    python = environment(packages, directory) / "bin" / "python"
    variables = {variable: value for variable, value in os.environ.items() if variable != "PYTHONPATH"}
    variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hf" / file_name(*packages))}
    command = [python, "-W", "ignore", "-c", code, models]
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(*sys.argv[1:] or [temporary]).absolute())
