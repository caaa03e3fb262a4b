"""Run a new Python interpreter with torch and transformers but without this project and without the network."""

import json
import os
import subprocess
import sys

WITHOUT_CSEZOO = """
import sys

class NoZoo:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "csezoo":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoZoo())
"""


def run_without_csezoo(code: str, tmp_path, **environment: str):
    """Run `code` and return the JSON value that it prints last."""
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CSEZOO + code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
