"""What many tests start from: a finished run, a Hub, the command that publishes to it, SentEval's data, triplets."""

import logging
import shutil
from functools import partial

import pytest

from csezoo.training.files import write_json
from tests.conftest import SENTENCES
from tests.hub_server import HubServer
from tests.repositories import publish_to, tiny_repository
from tests.training.faults import AtRecord, Stopped, stop
from tests.training.runs import train, values
from tests.training.senteval_files import write_senteval


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A run directory with a finished model."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    run.mkdir()
    tiny_repository(run / "best")
    results = {"model": "tiny", "base_model": "/home/me/bert", "neighbours": [{"query": "/a/ sentence"}]}
    write_json(run / "results.json", results)
    recipe = "name: tiny\nmethod: simcse\ntrain_file: /home/me/train.txt\nteachers: [/home/me/teacher]\n"
    recipe += "named_prompts: {query: '/query '}\n"  # no path
    (run / "recipe.yaml").write_text(recipe, encoding="utf-8")
    return run


@pytest.fixture
def finished_run(finished, tmp_path):
    """A copy of `finished` that a test may change."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


@pytest.fixture
def publish(hub, tmp_path):
    """A function that runs `csezoo publish` against the test's Hub."""
    return partial(publish_to, hub, tmp_path / "hf")


@pytest.fixture(scope="session")
def senteval(tmp_path_factory):
    """A directory with every file SentEval reads for STS; a test changes a copy."""
    return write_senteval(tmp_path_factory.mktemp("senteval"))


@pytest.fixture
def triplets(tmp_path):
    """The keys of a recipe that trains on a file of labelled triplets."""
    path = tmp_path / "triplets.csv"
    rows = [f"{a},{b},{c}" for a, b, c in zip(SENTENCES[:40], SENTENCES[1:41], SENTENCES[2:42], strict=True)]
    path.write_text("premise,entailed,contradicted\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return {"nli_file": str(path), "nli_columns": ["premise", "entailed", "contradicted"], "nli_classes": 2}


@pytest.fixture
def tiny(bases, train_file, dev_file, tmp_path):
    """A function that returns the keys of a run of a few seconds, see `values`; its directory is `run`."""
    return partial(values, bases["bert"], train_file, dev_file, tmp_path / "run")


@pytest.fixture
def train_up_to():
    """Trains in this process up to a line of the log."""
    logger = logging.getLogger("csezoo")
    before = list(logger.handlers)

    def train_up_to(text, recipe, occurrence=1):
        AtRecord(text, stop, occurrence).install()
        with pytest.raises(Stopped):
            train(recipe)
        logger.handlers[:] = before

    yield train_up_to
    logger.handlers[:] = before
