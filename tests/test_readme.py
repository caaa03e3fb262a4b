"""README's commands, as they are written there."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clean_interpreter import run_without_csezoo

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def command(marker: str) -> str:
    """The command under a marker."""
    found = re.search(rf"<!-- {marker} command -->\n```bash\n(.+)\n```", README)
    assert found, f"README.md has no {marker} command"
    return found[1]


def test_ci_runs_the_test_command_of_the_readme():
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert command("test").endswith("python -m pytest -n auto --dist loadfile")


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """The main command, run literally in a fresh virtual environment on a copy of the project."""
    project = tmp_path_factory.mktemp("project") / "csezoo"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, project / name)
    environment = project.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {"PATH": f"{environment / 'bin'}:{variables['PATH']}", "HF_HOME": str(project.parent / "hf")}

    def run(line):
        started = time.perf_counter()
        done = subprocess.run(["bash", "-c", line], cwd=project, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout, done.stderr, time.perf_counter() - started

    install, launch = command("main").split(" && ")
    run(install)
    return project, run(launch), run(launch)


def table(shown: str) -> dict[str, tuple[float, float]]:
    """Spearman and recall@1 of each row of the report."""
    lines = re.findall(r"^(\S.*?) +(-?\d+\.\d\d) +([01]\.\d\d)$", shown, re.MULTILINE)
    return {name: (float(score), float(recall)) for name, score, recall in lines}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_labels_of_the_quickstart_beat_tf_idf_and_the_untrained_rows_on_unseen_events(quickstart):
    project, (shown, _, seconds), _ = quickstart
    rows = table(shown)
    score, recall = rows["diffaug, labels"]
    assert score >= rows["tf-idf"][0] + 5, rows
    assert score >= max(rows["untrained, cls"][0], rows["untrained, mean"][0]) + 20, rows
    assert rows["simcse, no labels"][0] > rows["untrained, mean"][0], rows
    assert recall >= 0.7, rows
    results = json.loads((project / "runs/quickstart/results.json").read_text(encoding="utf-8"))
    assert f"{results['results'][1]['value']:.2f}" in shown
    print(f"quickstart: {seconds:.0f} s, {rows}")


@pytest.mark.slow
def test_the_readme_shows_what_the_quickstart_prints(quickstart):
    _, (shown, _, _), _ = quickstart
    printed, rows = table(README), table(shown)
    assert list(printed) == list(rows)
    for name in rows:  # another processor may round differently
        assert printed[name][0] == pytest.approx(rows[name][0], abs=2), name
        assert printed[name][1] == pytest.approx(rows[name][1], abs=0.05), name
    for line in re.findall(r"^(?:Test|Nearest|Similarities).*$", README, re.MULTILINE):
        assert line in shown


@pytest.mark.slow
def test_the_quickstart_says_how_long_each_training_will_take(quickstart):
    log = quickstart[1][1]
    for stage in ("masked language modelling", "training"):
        assert re.search(rf"^{stage}.*: \d+ of \d+, \d\d:\d\d left", log, re.MULTILINE), log


@pytest.mark.slow
def test_quickstart_ends_with_lines_that_load_what_it_made(quickstart, tmp_path):
    project, (shown, _, _), _ = quickstart
    lines = [line.strip() for line in shown.rstrip().splitlines()[-3:]]
    assert lines[0] == "from sentence_transformers import SentenceTransformer"
    code = "\n".join([f"import json, os\nos.chdir({str(project)!r})", *lines, "print(json.dumps(embeddings.shape))"])
    assert run_without_csezoo(code, tmp_path)[0] == 2


@pytest.mark.slow
def test_a_second_quickstart_uses_what_did_not_change(quickstart):
    _, (first, _, seconds), (second, log, again) = quickstart
    assert second == first
    assert "exists and is unchanged" in log and "is finished" in log
    assert again < seconds / 3


@pytest.mark.slow
def test_the_three_lines_of_the_readme_load_the_quickstart(quickstart, tmp_path):
    project, *_ = quickstart
    lines = re.search(r"```python\n(.+?)```", README, re.DOTALL)[1]
    code = f"import json, os\nos.chdir({str(project)!r})\n{lines}\nprint(json.dumps(embeddings.shape))"
    assert run_without_csezoo(code, tmp_path)[0] == 3
