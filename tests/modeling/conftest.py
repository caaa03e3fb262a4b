import pytest

from tests.two_processes import two_processes_of_one_group


@pytest.fixture(scope="session")
def two_processes():
    with two_processes_of_one_group() as run:
        yield run
