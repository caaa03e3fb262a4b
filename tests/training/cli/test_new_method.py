"""`csezoo new-method` writes a method that trains and passes the tests, or nothing."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from csezoo.training.cli import new_method
from csezoo.training.cli.parser import main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def clone(tmp_path) -> Path:
    """A copy of the project in which it can be imported: `csezoo` has links to its packages."""
    root = tmp_path / "clone"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in filter(lambda name: (ROOT / name).is_file(), listed.stdout.splitlines()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name in ("modeling", "training", "model_cards"):
        (root / "csezoo" / name).symlink_to(root / name)
    for command in (["init", "-q"], ["add", "-A"]):  # for the tests that ask which files there are
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Path:
    """What new-method writes into, alone: its folders, the README, the style and what the new tests import."""
    for name in ("modeling/methods", "tests/methods", "tests/modeling"):
        (tmp_path / name).mkdir(parents=True)
    read = [ROOT / "README.md", ROOT / "pyproject.toml", *ROOT.glob("tests/*.py"), ROOT / "tests/methods/tested.py"]
    for file in read:
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    monkeypatch.setattr(new_method, "ROOT", tmp_path)
    return tmp_path


def run(clone: Path, *command: str) -> str:
    """What Python prints in a clone."""
    # Without the options of the tests around it, such as those for coverage.
    environment = {**os.environ, "PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run([sys.executable, *command], cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def begin(clone: Path, name: str, *seams: str) -> str:
    return run(clone, "-m", "csezoo.training.cli", "new-method", name, "--seams", ",".join(seams))


def content(root: Path) -> dict[str, bytes]:
    """Every file; an empty directory too would be one that a method is looked for in."""
    return {str(path): path.is_file() and path.read_bytes() for path in root.rglob("*")}


def test_a_method_of_each_seam_passes_the_quick_tests(clone, monkeypatch):
    monkeypatch.setattr(new_method, "ROOT", clone)
    names = [f"new{seam}" for seam in new_method.SEAMS]
    for name, seam in zip(names, new_method.SEAMS, strict=True):
        folder = clone / "modeling" / "methods" / name
        new_method.write(folder, new_method.new_files(name, [seam]), f"| {name} | `{name}-bert-base-uncased` |")
    tests = [*(f"tests/modeling/test_{name}.py" for name in names), "tests/modeling/test_neutral.py"]
    tests += ["tests/modeling/test_methods.py", "tests/training/recipes/test_zoo.py"]
    chosen = f"({' or '.join(names)} or readme_names) and not roberta and not fresh_interpreter"
    passed = run(clone, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", chosen, *tests)
    assert "passed" in passed and "skipped" not in passed


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_method_of_all_seams_passes_the_tests_that_the_docs_name(clone):
    assert "modeling/methods/tilted/ is a method" in begin(clone, "tilted", *new_method.SEAMS)
    chosen = "tilted or committed or reference or picture or readme_names"  # as in docs/adding-a-method.md
    run(clone, "-m", "pytest", "-q", "-n0", "tests", "-m", "slow or not slow", "-k", chosen)


SUBSETS = [list(some) for count in range(1, 5) for some in itertools.combinations(new_method.SEAMS, count)]


def test_the_code_for_any_seams_has_the_style_of_the_project(folders):
    """Also in what must fit together: imports, blank lines, the seams that it names."""
    if not (ruff := shutil.which("ruff")):
        pytest.skip("ruff is not installed")
    for seams in SUBSETS:
        files = new_method.new_files("NewCSE", seams)
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        code = [str(file) for file in files if file.suffix == ".py"]
        for command in (["check"], ["format", "--check"]):
            done = subprocess.run([ruff, *command, *code], cwd=folders, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


class Interrupted(dict):
    """Files of which some are written before Ctrl-C."""

    def items(self):
        yield from list(super().items())[:7]
        raise KeyboardInterrupt


def test_an_interruption_leaves_nothing(folders):
    before = content(folders)
    files = Interrupted(new_method.new_files("mixed", ["views"]))
    with pytest.raises(KeyboardInterrupt):
        new_method.write(folders / "modeling" / "methods" / "mixed", files, "| row |")
    assert content(folders) == before


@pytest.mark.parametrize(
    ("name", "seams", "line"),
    [
        ("SimCSE", "views", "name: simcse exists"),
        ("packing", "views", "name: packing exists (tests/modeling/test_packing.py)"),
        ("whitening", "views", "name: whitening exists"),
        ("3views", "views", "name: '3views' must be a letter and then letters, digits and _"),
        ("a-b", "views", "must be a letter"),
        ("class", "views", "no word of Python"),
        ("bert", "views", "name: bert is a model type"),
        ("mixed", "views,looks", "seams: 'looks' must be one of data, views, objective, auxiliary"),
        ("mixed", ",", "seams: '' must be one of"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(name, seams, line, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["new-method", name, "--seams", seams])
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert not (ROOT / "tests" / "methods" / f"{name}.py").exists() or name == "SimCSE"


def test_an_installed_copy_says_that_it_needs_a_clone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(new_method, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["new-method", "mixed", "--seams", "views"])
    assert "this is no clone of csezoo; clone it, and install it with pip install -e ." in capsys.readouterr().err


def test_a_clone_that_is_not_the_installed_one_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "tests" / "methods").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "tests")
    with pytest.raises(SystemExit, match="2"):
        main(["new-method", "mixed", "--seams", "views"])
    assert f"{tmp_path} is a clone, but csezoo is installed from {ROOT}; pip install -e" in capsys.readouterr().err
