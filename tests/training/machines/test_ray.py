"""Tables on a real Ray cluster of this machine."""

import subprocess

import pytest

from .conftest import assert_same, only_run, training_processes, wait_for_the_middle

pytest.importorskip("ray", reason="RAY NOT TESTED: pip install ray")
pytestmark = pytest.mark.slow


def test_a_run_whose_worker_is_killed_is_retried_and_ends_bit_identical(table, uninterrupted, tmp_path):
    with subprocess.Popen(**table(tmp_path, "--on", "ray")) as command:
        run = wait_for_the_middle(tmp_path, command)
        training = training_processes(run)
        worker = training[0].parent()
        assert worker.name().startswith("ray::")
        for process in (worker, *training):
            process.kill()
        assert not (run / "results.json").is_file()
        assert command.wait(timeout=800) == 0
    assert "resumed from" in (run / "train.log").read_text(encoding="utf-8")
    assert_same(only_run(tmp_path), uninterrupted)
    assert (tmp_path / "prdsimcse" / "table-13" / "table.md").is_file()


def test_a_run_that_fails_on_ray_is_named(table, tmp_path):
    words = table(tmp_path, "--on", "ray", "--set", "train_file=nowhere.txt")
    done = subprocess.run(**words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "1 of 1 runs failed" in done.stderr and "nowhere.txt" in done.stderr.splitlines()[-1]
