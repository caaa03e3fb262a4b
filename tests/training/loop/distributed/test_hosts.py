"""Hosts wait for each other as long as it takes; devices give up after the short limit of their backend."""

import pytest

from tests.interpreters import run_two

# Two processes whose devices wait for two seconds at most.
BEGIN = """
import time
from datetime import timedelta
import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from csezoo.training.loop.distributed import hosts
from csezoo.training.loop.distributed.launch import join_processes, on_main
dist.init_process_group("gloo", timeout=timedelta(seconds=2))
state = join_processes()
"""


def test_the_main_process_may_take_longer_than_devices_wait():
    code = """
assert on_main(Accelerator(), lambda: time.sleep(3) or "scored") == "scored"
if state.is_main_process:
    time.sleep(3)
hosts.wait_for_all()
gathered = hosts.gather_on_main(state.process_index)
assert gathered == ([0, 1] if state.is_main_process else None)
"""
    run_two("-c", BEGIN + code)


def test_a_lost_process_holds_the_others_for_the_short_limit_only():
    code = """
if state.is_main_process:
    time.sleep(6)  # as one that never comes back
else:
    started = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        assert time.monotonic() - started < 5
    else:
        raise AssertionError("the sum of a process that is lost")
"""
    run_two("-c", BEGIN + code)


def test_the_limit_of_the_devices_is_that_of_the_backend():
    code = """
from torch.distributed.constants import default_pg_timeout
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
assert backend.options._timeout == default_pg_timeout
"""
    without = BEGIN.replace('dist.init_process_group("gloo", timeout=timedelta(seconds=2))', "")
    run_two("-c", without + code)


@pytest.mark.parametrize("local_ranks", ["00", "01"])
def test_one_process_of_each_node_goes_first(local_ranks, tmp_path):
    """With two nodes of one process each, both prepare at once; on one node the second finds what the first made."""
    code = f"""
import os
from pathlib import Path
state.local_process_index = int({local_ranks!r}[state.process_index])
with hosts.first_of_each_node():
    done = sorted(path.name for path in Path({str(tmp_path)!r}).iterdir())
    time.sleep(1)
    Path({str(tmp_path)!r}, str(state.process_index)).touch()
expected = ["0"] if {local_ranks!r}[state.process_index] == "1" else []
assert done == expected, done
"""
    run_two("-c", BEGIN + code)
