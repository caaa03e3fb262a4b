"""The documentation is true: its commands run, and its options exist.

Each page is run from top to bottom, as a reader would, in a directory of its own. The material has the names that the
pages use, but it is tiny.
"""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from markdown_it import MarkdownIt

from csezoo.training.cli.parser import build_parser, main
from csezoo.training.cli.reference import filled
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import load_recipe, make_recipe, parse_overrides
from csezoo.training.train import main as train
from tests.conftest import SENTENCES
from tests.training.senteval_files import write_senteval

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
TRAIN = "accelerate launch -m csezoo.training.train"
# Commands that are not run here, and why. Their options are checked all the same.
NOT_RUN = {
    r"python3 -m venv .*": "it is the shell's",
    r"python -m pip install .*": "test_readme.py and .ci/run run the main command and the test command",
    r"python -m pytest .*": "these are the tests",
    rf"{TRAIN} simcse-bert-base-uncased": "it downloads BERT-base and a million sentences",
    r"accelerate launch -m csezoo.training.train simcse-sup-eol-qwen3-lora": "it downloads Qwen3 and NLI",
    r"accelerate launch --dynamo_backend .*": "it compiles for minutes; training/loop/test_compiled.py runs it",
    r"accelerate launch --mixed_precision .*": "training/loop/test_train.py runs other precisions",
    r"ACCELERATE_USE_CPU=true .*": "two processes; the tests of loop/ and embedding/ run them",
    r"csezoo new-method .*": "it writes to this project; training/cli/test_new_method.py begins methods in a copy",
    r"csezoo benchmark .*": "it takes minutes; the tests of the benchmarks run each on tiny material",
    r"csezoo glue .*": "it takes minutes; training/evaluation/test_glue.py runs it",
    r"csezoo evaluate .* --suite sts .*": "training/cli/test_parser.py runs it",
    r"csezoo compare .*": "training/evaluation/test_significance.py compares on small tasks",
    r"csezoo table raw.json .*": "its files are not made here; training/cards/test_published.py makes tables",
    r"csezoo evaluate .* transfer .*": "it takes minutes; training/evaluation/tasks/test_transfer.py runs it",
    r"python -m csezoo.training.cli.reference .*": "it writes this project's page; a test below makes it",
    r"csezoo reproduce .* (--seeds|--on) .*": "it trains; training/reproducing/ makes tables",
    r"csezoo tune .*": "it trains; training/tuning/ searches",
    r"csezoo publish .*": "training/publishing/test_publish.py publishes to a Hub on this machine",
    r"csezoo merge .*": "training/publishing/test_adapters.py merges an adapter with a tiny base",
    r"csezoo convert .*": "training/converting/ converts checkpoints in the released layouts",
    r"examples/continue_training.sh .*": "test_examples.py runs it",
    r"python examples/pretrain_further.py .*": "test_examples.py runs it",
    rf"{TRAIN} quickstart.*": "test_readme.py and training/quickstart/test_run.py run it",
    r"csezoo export .* --onnx.*": "training/publishing/test_export.py and test_quantized.py run it",
    r"csezoo mteb .*": "training/evaluation/test_mteb_tasks.py runs it",
    r"csezoo evaluate .* --format mteb .*": "training/evaluation/test_mteb_tasks.py runs it",
    r"python -m tests.foreign_clients .*": "it installs packages; foreign_clients/test_foreign_clients.py runs some",
}
# What is changed in a command that is run: how long it takes.
SHORTER = {"--max_steps 100": "--max_steps 2", "--nli_steps 60 --max_steps 60": "--nli_steps 2 --max_steps 2"}
SHORTER |= {" --base_model sentence-tr": " --max_steps 2 --base_model sentence-tr"}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the code blocks of a page."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    return [(token.info, token.content) for token in tokens if token.type == "fence"]


def commands(text: str) -> list[str]:
    """The commands of a block, each in one line."""
    return [line for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines() if line]


def not_run(command: str) -> bool:
    return any(re.fullmatch(pattern, command) for pattern in NOT_RUN)


DOCUMENTED = [
    command for page in PAGES for language, text in blocks(page) if language == "bash" for command in commands(text)
]


@pytest.fixture(scope="module")
def material(bases, named_models, train_file, dev_file, tmp_path_factory):
    """What the pages name: a finished quickstart, another run, evaluation data, files of sentences and of pairs.

    The base model is a RoBERTa: its bytes tell the made sentences of the evaluation data apart.
    """
    directory = tmp_path_factory.mktemp("material")
    write_senteval(directory / "SentEval" / "data")
    for path in named_models.iterdir():
        (directory / path.name).symlink_to(path)
    for file in directory.glob("SentEval/data/downstream/STS/STSBenchmark/*.csv"):  # with pairs of equal meaning
        file.write_text(file.read_text(encoding="utf-8").replace(".500\t", ".000\t"), encoding="utf-8")
    world = directory / "runs" / "quickstart" / "world"
    world.mkdir(parents=True)
    shutil.copy(train_file, world / "train.txt")
    for name in ("dev.csv", "test.csv"):
        shutil.copy(dev_file, world / name)
    shutil.copytree(bases["roberta"], directory / "runs" / "quickstart" / "base")
    shutil.copy(train_file, directory / "sentences.txt")
    shutil.copy(dev_file, directory / "pairs.csv")
    rows = [f"{a},{b},{c}" for a, b, c in zip(SENTENCES[:40], SENTENCES[1:41], SENTENCES[2:42], strict=True)]
    (directory / "triplets.csv").write_text("\n".join(["sent0,sent1,hard_neg", *rows]), encoding="utf-8")
    tiny = {"base_model": "runs/quickstart/base", "train_file": "runs/quickstart/world/train.txt", "eval_data": "none"}
    tiny |= {"max_steps": 2, "eval_steps": 1, "batch_size": 16, "report_to": "none"}
    pairs = {name: f"runs/quickstart/world/{name[:-5]}.csv" for name in ("dev_file", "test_file")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        run_recipe(make_recipe({"name": "quickstart", **tiny, **pairs}), show=False)
        run_recipe(make_recipe({"name": "weakened", "method": "l2pcsr", **tiny}), show=False)
        (directory / "my-recipe.yaml").write_text("\n".join(f"{key}: {tiny[key]}" for key in tiny), encoding="utf-8")
    shutil.copytree(directory / "runs" / "quickstart", directory / "runs" / "first")
    unlabelled = directory / "runs" / "quickstart" / "simcse"
    unlabelled.mkdir()
    shutil.copy(directory / "runs" / "quickstart" / "recipe.yaml", unlabelled)
    shutil.copytree(ROOT / "model_cards", directory / "model_cards")
    for name in ("examples", "docs", "training"):
        (directory / name).symlink_to(ROOT / name)
    return directory


def workplace(directory: Path, material: Path, page: Path) -> Path:
    """A directory with the material, without what the page itself makes."""
    made = set(re.findall(r"--(?:output_dir|to|html) (\S+)", page.read_text(encoding="utf-8")))
    (directory / "runs").mkdir()
    for path in (*material.glob("*"), *material.glob("runs/*")):
        name = path.relative_to(material).as_posix()
        if path.is_file():
            shutil.copy(path, directory / name)
        elif name not in {"runs", *made}:
            (directory / name).symlink_to(path)
    return directory


def run(command: str) -> None:
    """A command of the pages; in this process where the launcher and the shell add nothing."""
    for long, short in SHORTER.items():
        command = command.replace(long, short)
    words = [file for word in shlex.split(command) for file in (glob(word) or [word])]
    if words[0] == "csezoo":
        main(words[1:])
    elif command.startswith(TRAIN):
        train(words[TRAIN.count(" ") + 1 :])
    elif command.startswith("python examples/"):
        runpy.run_path(words[1], run_name="examples")["main"](*words[2:])
    else:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-c", command], check=True, env=environment)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.filterwarnings("ignore:An input array is nearly constant")  # the tiny model is hardly trained
@pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator")  # the default of the trainers
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_runs_from_top_to_bottom(page, material, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(workplace(tmp_path / "work", material, page))
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page.name, "exec"), {})  # noqa: S102
        elif language == "bash":
            for command in commands(text):
                if not not_run(command):
                    run(command)


@pytest.mark.parametrize("command", [command for command in DOCUMENTED if not_run(command)])
def test_options_of_a_command_that_is_not_run_exist(command):
    words = shlex.split(command.split("csezoo", 1)[-1]) if "csezoo" in command else []
    if command.startswith("csezoo"):
        options, keys = build_parser().parse_known_args(words)
        assert options.takes_keys or not keys
        if options.takes_keys:
            load_recipe(options.recipe, parse_overrides(keys))
    elif words[:1] == [".training.train"] and not words[1].startswith("quickstart"):
        load_recipe(words[1], parse_overrides(words[2:]))
    elif words[:1] == [".training.cli"]:
        build_parser().parse_args(words[1:])


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_every_exception_is_a_command_of_the_documentation(pattern):
    assert any(re.fullmatch(pattern, command) for command in DOCUMENTED)


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in DOCS} - {"README.md"} <= set(re.findall(r"\]\((.+?\.md)\)", index))


def test_the_reference_is_that_of_the_declarations():
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert filled(page) == page, "run python -m csezoo.training.cli.reference docs/reference.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    named = re.findall(
        r"`((?:modeling|training|tests|model_cards|examples)/[\w./]+)`", page.read_text(encoding="utf-8")
    )
    for name in (name for name in named if "NAME" not in name):  # NAME stands for a new method's
        assert (ROOT / name).exists(), name
