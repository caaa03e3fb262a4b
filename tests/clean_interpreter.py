"""Run Python with torch and transformers but without this project, without peft and without the network."""

import json

from tests.interpreters import run_python

WITHOUT_CSEZOO = """
import sys

class NoZoo:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "csezoo":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

assert not [name for name in sys.modules if name.split(".")[0] == "csezoo"]
sys.meta_path.insert(0, NoZoo())
sys.modules["peft"] = None
"""


def run_without_csezoo(code: str, tmp_path, **environment: str):
    """Run `code` and return the JSON value that it prints last."""
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), **environment}
    done = run_python("-c", WITHOUT_CSEZOO + code, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
