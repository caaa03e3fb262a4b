"""Every example runs as it says.

`launch/fsdp.yaml` does in `training/test_sharding.py`, `launch/deepspeed.yaml` in `training/test_zero.py`, the demo in
`test_space.py`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.interpreters import run_python
from tests.modeling.test_distributed import free_port
from tests.training.loop.test_train import command_line, values

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(*command, **environment) -> list[str]:
    """The lines a command prints."""
    environment = {**os.environ, **environment}
    done = subprocess.run(map(str, command), capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def example(name, *arguments) -> list[str]:
    """The lines a Python file among the examples prints."""
    done = run_python(EXAMPLES / name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def repository(bases, train_file, dev_file, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("run")
    run_recipe(make_recipe(values(bases["bert"], train_file, dev_file, output, max_steps=1)), show=False)
    return output / "best"


def test_embed_sentences(repository):
    twice = ["the cat sees the house .", "the cat sees the house ."]
    said = example("embed_sentences.py", repository, *twice)
    assert said == [" 1.00   1.00   the cat sees the house ."] * 2


def test_semantic_search_finds_the_sentence_itself_first(repository, train_file):
    said = example("semantic_search.py", repository, train_file, *SENTENCES[:2])
    assert [said[0], said[6]] == SENTENCES[:2]
    assert [said[1], said[7]] == [f"  1.00  {sentence}" for sentence in SENTENCES[:2]]
    assert len(said) == 12


def test_cluster_sentences_puts_every_sentence_into_one_group(repository, tmp_path):
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES[:9]), encoding="utf-8")
    said = example("cluster_sentences.py", repository, tmp_path / "sentences.txt", 3)
    assert [line for line in said if not line.startswith("  ")] == ["group 1", "group 2", "group 3"]
    assert sorted(line.strip() for line in said if line.startswith("  ")) == sorted(SENTENCES[:9])


def test_continue_training_leaves_a_repository(repository, train_file, dev_file, tmp_path):
    keys = ["--dev_file", dev_file, "--eval_data", "none", "--max_steps", 1, "--report_to", "none"]
    run(EXAMPLES / "continue_training.sh", repository, train_file, tmp_path / "further", *keys)
    assert (tmp_path / "further" / "best" / "model.safetensors").is_file()


def test_a_method_in_one_file_trains_and_passes_the_tests_of_every_method(bases, train_file, dev_file, tmp_path):
    """The file is put where it says, the lines where it says."""
    (tmp_path / "csezoo").mkdir()
    (tmp_path / "csezoo" / "training").symlink_to(ROOT / "training")
    shutil.copytree(ROOT / "modeling", tmp_path / "csezoo" / "modeling")
    for name in ("__init__.py", "conftest.py", "clean_interpreter.py"):
        (tmp_path / "tests" / "modeling").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    for name in ("__init__.py", "test_methods.py", "test_neutral.py"):
        shutil.copy(ROOT / "tests" / "modeling" / name, tmp_path / "tests" / "modeling")
    shutil.copy(EXAMPLES / "modeling_arccse.py", tmp_path / "csezoo" / "modeling")
    said = (EXAMPLES / "modeling_arccse.py").read_text(encoding="utf-8")

    def put(line, file, before):
        assert line in said
        text = file.read_text(encoding="utf-8")
        assert text.count(before) == 1
        file.write_text(text.replace(before, f"{line}\n{before}"), encoding="utf-8")

    package = tmp_path / "csezoo" / "modeling" / "__init__.py"
    put(
        "from .modeling_arccse import ArcCSEConfig, ArcCSEForContrastiveLearning, ArcCSEModel",
        package,
        "from .modeling_diffaug",
    )
    put('"arccse": (ArcCSEConfig, ArcCSEModel, ArcCSEForContrastiveLearning),', package, '    "simcse": (')
    tests = tmp_path / "tests" / "modeling"
    text = (tests / "test_methods.py").read_text(encoding="utf-8")
    (tests / "test_methods.py").write_text(text.replace("CONFIGS = {", 'CONFIGS = {"arccse": {},'), encoding="utf-8")
    text = (tests / "test_neutral.py").read_text(encoding="utf-8")
    neutral = 'NEUTRAL = {"arccse": {"margin": 0.0},'
    (tests / "test_neutral.py").write_text(text.replace("NEUTRAL = {", neutral), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", tests, "-k", "arccse"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        map(str, command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout.splitlines()[-1]
    recipe = values(bases["bert"], train_file, dev_file, tmp_path / "run", max_steps=1, method="l2pcsr+arccse")
    options = [*command_line(recipe), "--margin", 0.2]
    run(sys.executable, "-m", "csezoo.training.train", *options, PYTHONPATH=str(tmp_path))
    assert "L2P-CSR" in (tmp_path / "run" / "best" / "README.md").read_text(encoding="utf-8")


def launched(config, recipe, *options) -> subprocess.Popen:
    command = ["accelerate", "launch", "--config_file", EXAMPLES / "launch" / config, *options]
    return subprocess.Popen(
        [*map(str, command), "-m", "csezoo.training.train", *command_line(recipe)],
        env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_one_machine_runs_two_processes(bases, train_file, dev_file, tmp_path):
    process = launched("one_machine.yaml", values(bases["bert"], train_file, dev_file, tmp_path, max_steps=2))
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "2 process(es) on cpu" in errors


def test_two_machines_run_a_process_each(bases, train_file, dev_file, tmp_path):
    """Two launchers on this machine are what two machines run."""
    recipe = values(bases["bert"], train_file, dev_file, tmp_path, max_steps=2)
    port = ("--main_process_port", free_port())
    processes = [launched("two_machines.yaml", recipe, "--machine_rank", rank, *port) for rank in (0, 1)]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert "2 process(es) on cpu" in errors[0]


def test_launch_files_say_how_they_are_started():
    for file in (EXAMPLES / "launch").glob("*.yaml"):
        assert f"accelerate launch --config_file examples/launch/{file.name}" in file.read_text(encoding="utf-8")
        kind = {"fsdp": "FSDP", "deepspeed": "DEEPSPEED"}.get(file.stem, "MULTI_GPU")
        assert yaml.safe_load(file.read_text(encoding="utf-8"))["distributed_type"] == kind
