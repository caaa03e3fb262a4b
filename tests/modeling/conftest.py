"""Two processes that train together."""

from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

import pytest

from tests.interpreters import free_port
from tests.two_processes import join, leave


@pytest.fixture(scope="session")
def two_processes():
    """Runs a function in two processes of one group, and returns the result of the first."""
    port, spawn = free_port(), get_context("spawn")
    with ExitStack() as stack:
        made = [ProcessPoolExecutor(1, spawn, initializer=join, initargs=(rank, port)) for rank in range(2)]
        pools = [stack.enter_context(pool) for pool in made]

        def run(function, *arguments):
            calls = [pool.submit(function, rank, *arguments) for rank, pool in enumerate(pools)]
            return [call.result() for call in calls][0]

        yield run
        for call in [pool.submit(leave) for pool in pools]:
            call.result()
