"""Every example runs as it says.

Two are tested elsewhere: `launch/fsdp.yaml` and `launch/deepspeed.yaml` in `training/loop/distributed`, the demo in
`test_space.py`.
"""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer

from csezoo.training.files import read_json
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.interpreters import free_port, run_python
from tests.training.runs import command_line, values

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(*command, **environment) -> list[str]:
    """The lines a command prints."""
    environment = {**os.environ, **environment}
    done = subprocess.run(map(str, command), capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def example(capsys):
    """Runs a Python file among the examples, and returns the lines that it prints."""

    def run(name, *arguments) -> list[str]:
        runpy.run_path(str(EXAMPLES / name), run_name="examples")["main"](*map(str, arguments))
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture(scope="module")
def repository(bases, train_file, dev_file, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("run")
    run_recipe(make_recipe(values(bases["bert"], train_file, dev_file, output, max_steps=1)), show=False)
    return output / "best"


def test_embed_sentences_prints_cosine_1_for_equal_sentences(repository, example):
    twice = ["the cat sees the house .", "the cat sees the house ."]
    said = example("embed_sentences.py", repository, *twice)
    assert said == [" 1.00   1.00   the cat sees the house ."] * 2


def test_semantic_search_finds_the_sentence_itself_first(repository, train_file, example):
    said = example("semantic_search.py", repository, train_file, *SENTENCES[:2])
    assert [said[0], said[6]] == SENTENCES[:2]
    assert [said[1], said[7]] == [f"  1.00  {sentence}" for sentence in SENTENCES[:2]]
    assert len(said) == 12


def test_cluster_sentences_puts_every_sentence_into_one_group(repository, tmp_path, example):
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES[:9]), encoding="utf-8")
    said = example("cluster_sentences.py", repository, tmp_path / "sentences.txt", 3)
    assert [line for line in said if not line.startswith("  ")] == ["group 1", "group 2", "group 3"]
    assert sorted(line.strip() for line in said if line.startswith("  ")) == sorted(SENTENCES[:9])


@pytest.mark.slow
def test_continue_training_leaves_a_repository(repository, train_file, dev_file, tmp_path):
    keys = ["--dev_file", dev_file, "--eval_data", "none", "--max_steps", 1, "--report_to", "none"]
    run(EXAMPLES / "continue_training.sh", repository, train_file, tmp_path / "further", *keys)
    assert (tmp_path / "further" / "best" / "model.safetensors").is_file()


@pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator")  # the default of the trainers
def test_pretrain_further_leaves_a_base_and_continues_when_started_again(bases, train_file, tmp_path, example):
    def log(*options) -> list[float]:
        """The loss of each update, as the last checkpoint remembers it."""
        example("pretrain_further.py", bases["bert"], train_file, tmp_path / "base", "--logging_steps=1", *options)
        last = max(tmp_path.glob("base/checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        return [row["loss"] for row in read_json(last / "trainer_state.json")["log_history"] if "loss" in row]

    first = log("--max_steps=2")
    assert len(first) == 2
    second = log("--max_steps=3")
    assert second[:2] == first
    assert len(second) == 3
    AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "base")) > 0


@pytest.fixture(scope="module")
def other_libraries(tmp_path_factory) -> Path:
    """The interpreter of an environment with LangChain and LlamaIndex, and with the libraries of this one."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    needed = ["langchain-core", "langchain-huggingface", "llama-index-core", "llama-index-embeddings-huggingface"]
    done = subprocess.run([python, "-m", "pip", "install", "-q", *needed], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{', '.join(needed)} could not be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("name", ["langchain_search.py", "llama_index_search.py"])
def test_langchain_and_llama_index_find_the_lines_that_the_model_finds(
    name, other_libraries, repository, train_file, example
):
    said = run(other_libraries, EXAMPLES / name, repository, train_file, SENTENCES[0], HF_HUB_OFFLINE="1")
    expected = example("semantic_search.py", repository, train_file, SENTENCES[0])[1:]
    # Sentences with the same cosine may be in another order.
    assert [line[:8] for line in said] == [line[:8] for line in expected[:3]]
    assert set(said) <= set(expected)


def test_a_loop_of_your_own_leaves_a_repository(bases, train_file, tmp_path, example):
    said = example("train_in_your_loop.py", bases["bert"], train_file, tmp_path / "own", "l2pcsr")
    assert [line.split()[:2] for line in said] == [[number, "{'contrastive':"] for number in "123"]
    said = example("embed_sentences.py", tmp_path / "own", *SENTENCES[:2])
    assert said[0].startswith(" 1.00")


METHODS = ("arccse", "esimcse")


@pytest.fixture(scope="module")
def contributed(tmp_path_factory) -> Path:
    """A copy of the project with each method's file put where it says, and what the tests need to know of it."""
    root = tmp_path_factory.mktemp("contributed")
    for name in ("modeling", "training"):
        shutil.copytree(ROOT / name, root / "csezoo" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "csezoo" / "__init__.py", root / "csezoo")
    shutil.copytree(ROOT / "tests", root / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", root)
    (root / "examples").symlink_to(EXAMPLES)
    for name in METHODS:
        (root / "csezoo" / "modeling" / "methods" / name).mkdir()
        shutil.copy(EXAMPLES / f"{name}.py", root / "csezoo" / "modeling" / "methods" / name / "__init__.py")
        docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))) or ""
        (lines,) = re.findall(r"^    TESTED = (?:.+\n(?: {4}.*\n)*)", docstring, re.MULTILINE)
        facts = f"from tests.methods.tested import PASS, Tested\n\n{textwrap.dedent(lines)}"
        (root / "tests" / "methods" / f"{name}.py").write_text(facts, encoding="utf-8")
    return root


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("marked", ["not slow", "slow"])
def test_methods_in_one_file_pass_the_tests_of_every_method(contributed, marked):
    """With the slow ones FSDP 2, and torch.compile."""
    tests = [
        *("modeling/test_methods.py", "modeling/test_neutral.py", "modeling/test_distributed.py"),
        *("modeling/test_mini_batches.py", "training/loop/test_resume.py", "training/loop/test_compiled.py"),
        *("training/loop/distributed/test_fsdp.py", "training/benchmarks/test_training.py"),
    ]
    command = [sys.executable, "-m", "pytest", "-v", "-n", 0, "-m", marked, "-k", " or ".join(METHODS)]
    command += [contributed / "tests" / test for test in tests]
    environment = {**os.environ, "PYTHONPATH": str(contributed)}
    done = subprocess.run(
        map(str, command), cwd=contributed, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout
    for name in METHODS:
        assert f"{name}] PASSED" in done.stdout


@pytest.mark.parametrize(
    ("method", "options"),
    [
        pytest.param("l2pcsr+arccse", {"margin": 0.2}, marks=pytest.mark.slow),
        ("esimcse+diffaug", {"queue_factor": 1.5}),
    ],
)
def test_a_method_in_one_file_trains_as_it_says(contributed, method, options, bases, train_file, dev_file, tmp_path):
    recipe = values(bases["bert"], train_file, dev_file, tmp_path / "run", max_steps=1, method=method, **options)
    done = run_python("-m", "csezoo.training.train", *command_line(recipe), PYTHONPATH=str(contributed))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "best" / "README.md").is_file()


def launched(config, recipe, *options) -> subprocess.Popen:
    command = ["accelerate", "launch", "--config_file", EXAMPLES / "launch" / config, *options]
    return subprocess.Popen(
        [*map(str, command), "-m", "csezoo.training.train", *command_line(recipe)],
        env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_one_machine_runs_two_processes(bases, train_file, dev_file, tmp_path):
    process = launched("one_machine.yaml", values(bases["bert"], train_file, dev_file, tmp_path, max_steps=2))
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "2 process(es) on cpu" in errors


@pytest.mark.slow
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
