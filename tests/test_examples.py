"""Every script in examples/ runs as its docstring says."""

import subprocess
import sys
from pathlib import Path

from csezoo.training.recipes import make_recipe
from csezoo.training.runs import run_recipe
from tests.training.test_train import values

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_embed_sentences(bases, train_file, dev_file, tmp_path):
    recipe = values(bases["bert"], train_file, dev_file, tmp_path, max_steps=1)
    run_recipe(make_recipe(recipe))
    arguments = [str(tmp_path / "best"), "the cat sees the house .", "the cat sees the house ."]
    script = EXAMPLES / "embed_sentences.py"
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [" 1.00   1.00   the cat sees the house ."] * 2
