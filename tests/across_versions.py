"""Whether published code gives the same vectors under other versions of transformers, each in its own environment.

    python -m tests.across_versions [DIRECTORY]

Saves a tiny checkpoint of every method and setting with the versions of this environment. For each other version it
makes a virtual environment in DIRECTORY (a temporary one by default; one that is there is used again), where csezoo is
not installed, and loads every checkpoint there with its own code. Not a test of `pytest`: it installs packages.
"""

import json
import os
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

from tests.conftest import SENTENCES
from tests.methods import CONFIGS
from tests.repositories import tiny_repository

OTHERS = ("4.57.6", "5.20.2")  # the last of 4.x, and the oldest that setup.cfg admits
TOO_OLD = "4.56.2"
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


def main(directory: Path) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    zoo = directory / "zoo" / transformers.__version__
    expected = {}
    cells = [(name, kind) for name in SETTINGS for kind in ("bert", "roberta")]
    for name, kind in tqdm(cells, desc="Saving", disable=not sys.stderr.isatty()):
        path = zoo / f"{name}-{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        tiny_repository(path, name.split("-")[0], kind, **SETTINGS[name])
        expected[path.name] = AutoModel.from_pretrained(path).encode(TEXTS)
    for version in OTHERS:
        done = load(directory, version, zoo)
        if done.returncode != 0:
            raise SystemExit(f"transformers {version}: {done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        distances = {name: np.abs(np.array(both) - expected[name]).max() for name, both in found.items()}
        worst = max(distances, key=distances.get)
        print(f"transformers {version}: {len(found)} checkpoints, off by {distances[worst]:.1e} at most ({worst})")
        if not found.keys() == expected.keys() or not distances[worst] <= TOLERANCE:
            raise SystemExit(f"transformers {version}: {TOLERANCE:g} is allowed")
    refused = load(directory, TOO_OLD, zoo).stderr.splitlines()[-1]
    print(f"transformers {TOO_OLD}: {refused}")
    if "transformers>=4.57 is required" not in refused:
        raise SystemExit(f"transformers {TOO_OLD} should be refused with one line")


def load(directory: Path, version: str, zoo: Path) -> subprocess.CompletedProcess:
    """What `LOAD` gives under a version, in an environment that is made if it is not there."""
    environment = directory / version
    if not environment.is_dir():
        partial = directory / f"{version}.partial"
        venv.create(partial, clear=True, with_pip=True)
        packages = [f"transformers=={version}", f"torch=={torch.__version__.split('+')[0]}", "numpy", "peft"]
        subprocess.run([partial / "bin" / "python", "-m", "pip", "install", "-q", *packages], check=True)
        partial.rename(environment)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hf" / version)}
    command = [environment / "bin" / "python", "-W", "ignore", "-c", LOAD, zoo]
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(*sys.argv[1:] or [temporary]).absolute())
