"""The clients that install in a minute, each in an environment of its own, on a few settings.

`python -m tests.foreign_clients` runs all clients on all settings.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.foreign_clients.clients import CLIENTS
from tests.foreign_clients.running import environment, judged, run_client
from tests.foreign_clients.settings import save_all, settings

FAST = ("ONNX Runtime", "fastembed", "transformers.js", "embed-anything")
CHOSEN = ("simcse-cls-none-bert", "simcse-mean-tanh-roberta", "simcse-prompt-none-roberta")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory) -> Path:
    """A directory with some repositories. CSEZOO_CLIENTS names one that is kept, with its environments."""
    directory = Path(os.environ.get("CSEZOO_CLIENTS", tmp_path_factory.mktemp("clients")))
    save_all([setting for setting in settings() if setting.name in CHOSEN], directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_a_client_returns_the_vectors_of_the_encoder_or_its_limit_says_why(name, repositories):
    (client,) = [client for client in CLIENTS if client.name == name]
    if name == "transformers.js" and shutil.which("npm") is None:
        pytest.skip("TRANSFORMERS.JS NOT TESTED: there is no npm")
    if client.packages:
        try:
            environment(client.packages, repositories, client.npm)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"{name.upper()} NOT TESTED: it cannot be installed ({error.stderr.decode()[-200:]})")
    _, found = run_client(client, repositories, list(CHOSEN))
    chosen = [setting for setting in settings() if setting.name in CHOSEN]
    outcomes, mistakes = judged(client, chosen, repositories, found)
    assert not mistakes and len(outcomes) == len(chosen)
