"""Whether published code gives the same vectors under other versions of its libraries, each in its own environment.

    python -m tests.across_versions [DIRECTORY]

Saves a tiny checkpoint of every method and setting with the versions of this environment, and the export of each that
has a plain form. For each other version of transformers or sentence-transformers it makes a virtual environment in
DIRECTORY (a temporary one by default; one that is there is used again), where csezoo is not installed, and loads all
of them there. Not a test of `pytest`: it installs packages.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
import torch
import transformers
from tqdm import tqdm
from transformers import AutoModel
from transformers.utils import logging

from csezoo.modeling.encoding import load_tokenizer
from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel
from csezoo.modeling.saved_files import OLDEST_SENTENCE_TRANSFORMERS
from csezoo.training.publishing.plain import separate_template_mask, write_plain_model
from tests.conftest import SENTENCES
from tests.methods import CONFIGS
from tests.repositories import tiny_repository

OTHERS = ("4.57.6", "5.20.2")  # the last of 4.x, and the oldest that setup.cfg admits
TOO_OLD = "4.56.2"
# Versions of sentence-transformers, each with a version of transformers that it admits.
SENTENCE_TRANSFORMERS = {"3.0.1": "4.57.6", "4.1.0": "4.57.6", "5.3.0": "4.57.6", "5.4.0": "4.57.6", "6.2.0": "5.20.2"}
TOLERANCE = 1e-5
PROMPT = {"pooling": "prompt", "prompts": ["this sentence : {sentence} means {mask} ."], "denoise": "always"}
SETTINGS = {**CONFIGS, "simcse-prompt": PROMPT, "diffaug-prompt": {**PROMPT, "denoise_length_offset": 0}}
TEXTS = ["", "zebra 🙂", *SENTENCES[:6], " ".join(SENTENCES[:20])]
LOAD = f"""
import json, sys
from pathlib import Path
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

vectors = {{}}
for path in sorted(Path(sys.argv[1]).iterdir()):
    model = AutoModel.from_pretrained(path, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=True)
    AutoModelForPreTraining.from_pretrained(path, trust_remote_code=True)
    model.verify()
    batch = tokenizer({TEXTS}, padding=True, truncation=True, return_tensors="pt")
    vectors[path.name] = [model.encode({TEXTS}).tolist(), model(**batch).pooler_output.tolist()]
print(json.dumps(vectors))
"""

ENCODE = f"""
import json, sys
from pathlib import Path
from sentence_transformers import SentenceTransformer

vectors = {{}}
for path in sorted(Path(sys.argv[1]).iterdir()):
    encoder = SentenceTransformer(str(path), trust_remote_code=True, device="cpu")
    vectors[path.name] = encoder.encode({TEXTS}).tolist()
print(json.dumps(vectors))
"""


def main(directory: Path) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    zoo = directory / "zoo" / transformers.__version__
    plain = directory / "plain" / transformers.__version__
    expected, exported = {}, {}
    cells = [(name, kind) for name in SETTINGS for kind in ("bert", "roberta")]
    for name, kind in tqdm(cells, desc="Saving", disable=not sys.stderr.isatty()):
        path = zoo / f"{name}-{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        tiny_repository(path, name.split("-")[0], kind, **SETTINGS[name])
        model = AutoModel.from_pretrained(path)
        expected[path.name] = model.encode(TEXTS)
        if not model.config.needs_own_code:
            exported[path.name] = expected[path.name]
            save_plain(plain / path.name, model)
    for version in OTHERS:
        compare(f"transformers {version}", run(directory, version, {"transformers": version}, LOAD, zoo), expected)
    refuse(
        f"transformers {TOO_OLD}",
        run(directory, TOO_OLD, {"transformers": TOO_OLD}, LOAD, zoo),
        "transformers>=4.57 is required",
    )
    for version, of_transformers in SENTENCE_TRANSFORMERS.items():
        name = f"sentence-transformers {version}"
        packages = {"sentence-transformers": version, "transformers": of_transformers}
        compare(f"{name}, exports", run(directory, f"st-{version}", packages, ENCODE, plain), exported)
        done = run(directory, f"st-{version}", packages, ENCODE, zoo)
        if tuple(map(int, version.split("."))) < tuple(map(int, OLDEST_SENTENCE_TRANSFORMERS.split("."))):
            refuse(name, done, f"version {OLDEST_SENTENCE_TRANSFORMERS}")
        else:
            compare(name, done, expected)


def save_plain(path: Path, model: SentenceEncoderModel) -> None:
    """Save the plain form of a model without the checks of `csezoo export`."""
    tokenizer = load_tokenizer(model)
    if model.config.pooling == "prompt":
        tokenizer = separate_template_mask(model, tokenizer)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    write_plain_model(path, model, tokenizer)


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


def run(directory: Path, name: str, versions: dict[str, str], code: str, models: Path) -> subprocess.CompletedProcess:
    """Run code on a directory of models in an environment with these versions, which is made if it is not there."""
    environment = directory / name
    if not environment.is_dir():
        partial = directory / f"{name}.partial"
        venv.create(partial, clear=True, with_pip=True)
        packages = [f"torch=={torch.__version__.split('+')[0]}", "numpy", "peft"]
        packages += [f"{package}=={version}" for package, version in versions.items()]
        subprocess.run([partial / "bin" / "python", "-m", "pip", "install", "-q", *packages], check=True)
        partial.rename(environment)
    variables = {variable: value for variable, value in os.environ.items() if variable != "PYTHONPATH"}
    variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hf" / name)}
    command = [environment / "bin" / "python", "-W", "ignore", "-c", code, models]
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(*sys.argv[1:] or [temporary]).absolute())
