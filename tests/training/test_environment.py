"""Progress where there is no terminal, and the memory of a training process."""

import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from csezoo.training.environment import progress_bar
from tests.interpreters import run_python


def test_progress_is_plain_lines_with_the_time_left(capsys):
    bar = progress_bar(400, "counting")
    now = time.time()
    bar._time, bar.start_t, bar.last_print_t = lambda: now, now - 10, now - 10  # ten seconds have passed
    bar.set_postfix(loss="0.5", refresh=False)
    bar.update(100)
    bar.update()  # too soon for another line
    bar.close()
    assert capsys.readouterr().err == "counting: 100 of 400, 00:30 left, loss=0.5\n"


def test_short_work_shows_nothing(capsys):
    with progress_bar(3, "counting") as bar:
        for _ in range(3):
            bar.update()
    assert capsys.readouterr().err == ""


RESIDENT = """
import re, sys, torch
from pathlib import Path
from csezoo.training.environment import keep_freed_memory, return_freed_memory
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10
if sys.argv[1] == "kept":
    keep_freed_memory()
before = resident()
torch.ones(2**26)  # 256 MiB, freed at once
if sys.argv[2] == "evaluated":
    return_freed_memory()
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize(
    ("how", "then", "expected"), [("returned", "", 0), ("kept", "", 256), ("kept", "evaluated", 0)]
)
def test_a_training_process_keeps_the_memory_that_it_frees_until_it_evaluates(how, then, expected):
    done = subprocess.run([sys.executable, "-c", RESIDENT, how, then], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) == pytest.approx(expected, abs=20)


WITHOUT_RESOURCE = """
import sys
sys.modules["resource"] = None  # as on Windows
from csezoo.training.cli import main
import csezoo.training.loop.runs, csezoo.training.publishing.export
main(["recipes"])
"""


def test_commands_start_on_a_system_without_the_module_resource():
    done = run_python("-c", WITHOUT_RESOURCE, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "simcse-bert-base-uncased" in done.stdout
