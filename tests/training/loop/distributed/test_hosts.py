"""Hosts wait for each other as long as it takes; devices give up after the short limit of their backend."""

import pytest

from tests.interpreters import run_two

# Two processes whose devices wait for two seconds at most, once both are there.
BEGIN = """
import os, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from csezoo.training.loop.distributed import hosts
from csezoo.training.loop.distributed.launch import join_processes, on_main
rank = int(os.environ["RANK"])
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, rank == 0)  # waits for both
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=2))
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


def test_an_error_of_the_first_process_of_a_node_lets_the_others_go_on():
    code = """
try:
    with hosts.first_of_each_node():
        raise ValueError("a file cannot be read")
except ValueError:
    hosts.wait_for_all()
else:
    raise AssertionError("no error")
"""
    run_two("-c", BEGIN + code)


def test_a_lost_process_holds_the_others_for_the_short_limit_only():
    code = """
if state.is_main_process:  # as one that never comes back
    store.get("the other has given up")
else:
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        store.set("the other has given up", "")
    else:
        raise AssertionError("the sum of a process that is lost")
"""
    run_two("-c", BEGIN + code)


def test_the_limit_of_the_devices_is_that_of_the_backend():
    code = """
from torch.distributed.constants import default_pg_timeout
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
assert backend.options._timeout == default_pg_timeout
hosts.wait_for_all()  # the main process, which the other reads from as it joins, stays until then
"""
    run_two("-c", BEGIN.partition("rank = ")[0] + "state = join_processes()" + code)


@pytest.mark.parametrize("local_ranks", ["00", "01"])
def test_one_process_of_each_node_goes_first(local_ranks, tmp_path):
    """With two nodes of one process each, both prepare at once; on one node the second finds what the first made."""
    code = f"""
state.local_process_index = int({local_ranks!r}[rank])
with hosts.first_of_each_node():
    done = sorted(path.name for path in Path({str(tmp_path)!r}).iterdir())
    if {local_ranks!r} == "00":
        store.set(f"{{rank}} is inside", "")
        store.get(f"{{1 - rank}} is inside")
    Path({str(tmp_path)!r}, str(rank)).touch()
assert done == (["0"] if {local_ranks!r}[rank] == "1" else []), done
"""
    run_two("-c", BEGIN + code)
