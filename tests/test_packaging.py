"""The package has its version, in a clone, in a wheel, and in a wheel that is made from the source distribution."""

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import csezoo

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta as m; print(getattr(m, 'build_' + sys.argv[1])(sys.argv[2]))"
SHOW = "import csezoo, csezoo.modeling, csezoo.training; print(csezoo.__version__, csezoo.training.__file__)"


def test_the_package_has_the_version_that_is_installed():
    assert csezoo.__version__ == importlib.metadata.version("csezoo")


def build(source: Path, kind: str, target: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(target)], cwd=source, capture_output=True, text=True, check=True
    )
    return target / done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_wheel_and_source_distribution_have_the_package_and_its_version(tmp_path):
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    clone = tmp_path / "clone"
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    with tarfile.open(build(clone, "sdist", tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("csezoo-*/")
    for origin, target in ((clone, tmp_path / "of-clone"), (source, tmp_path / "of-sdist")):
        with zipfile.ZipFile(build(origin, "wheel", tmp_path)) as wheel:
            wheel.extractall(target)  # noqa: S202 (made here)
        of_package = [name for name in listed.stdout.splitlines() if name.startswith(("modeling/", "training/"))]
        needed = [name for name in of_package if "/method_template/" not in name and (ROOT / name).is_file()]
        assert [name for name in needed if not (target / "csezoo" / name).is_file()] == []
        # Also in the directory of the clone, where `csezoo` has no `modeling`.
        for directory in (tmp_path, ROOT):
            shown = subprocess.run(
                [sys.executable, "-c", SHOW],
                cwd=directory,
                env={"PYTHONPATH": str(target), "CSEZOO_ROOT": "/nowhere", "PATH": ""},
                capture_output=True,
                text=True,
                check=True,
            )
            assert shown.stdout.split() == [csezoo.__version__, str(target / "csezoo" / "training" / "__init__.py")]
