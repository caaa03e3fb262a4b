"""SentEval's archive on the Hub: downloaded from a local server, extracted once, named in receipts."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from huggingface_hub.errors import HTTPError

from csezoo.training.errors import UserError
from csezoo.training.evaluation.tasks import senteval as senteval_files
from csezoo.training.evaluation.tasks.senteval import ARCHIVE, REPOSITORY
from csezoo.training.evaluation.tasks.sts import load_task
from csezoo.training.evaluation.tasks.transfer import load_transfer_task
from tests.interpreters import Python

FIND = """
import json
from csezoo.training.errors import UserError
from csezoo.training.evaluation.tasks.senteval import find_senteval

try:
    found = find_senteval("hub")
    print(json.dumps([str(found.root), found.name, found.revision]))
except UserError as error:
    print(json.dumps(str(error)))
"""
RECEIPTS = """
import json
from csezoo.training.evaluation.tasks.sts import load_task
from csezoo.training.evaluation.tasks.transfer import load_transfer_task

print(json.dumps([load_task("SICK-R", "hub").receipt(), load_transfer_task("CR", "hub").receipt()]))
"""


def archive(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def released(hub, senteval, cr):
    """The repository with an archive as released, with the tasks' directories at the top level."""
    paths = [senteval / "downstream" / "SICK" / "SICK_test_annotated.txt", *sorted((cr / "CR").iterdir())]
    content = archive(*((f"{path.parent.name}/{path.name}", path.read_bytes()) for path in paths))
    return hub.commit(REPOSITORY, "SentEval's data", {ARCHIVE: content})


def start(hub, tmp_path, code=FIND):
    return Python("-c", code, **hub.environment(tmp_path / "hf"))


def read(process):
    done = process.finish()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_tasks_from_the_hub_equal_those_of_a_directory_and_name_the_commit(hub, released, senteval, cr, tmp_path):
    sick, custrev = read(start(hub, tmp_path, RECEIPTS))
    commit = {"revision": released.id}
    assert sick == {
        **load_task("SICK-R", str(senteval)).receipt(),
        **commit,
        "dataset": f"{REPOSITORY} SICK/SICK_test_annotated.txt",
    }
    assert custrev == {**load_transfer_task("CR", str(cr)).receipt(), **commit, "dataset": f"{REPOSITORY} CR"}


def test_two_processes_at_once_download_and_extract_the_archive_once(hub, released, tmp_path):
    both = [start(hub, tmp_path), start(hub, tmp_path)]
    (root, name, revision), second = map(read, both)
    assert second == [root, name, revision] == [root, REPOSITORY, released.id]
    extracted = Path(root).stat().st_mtime_ns
    assert read(start(hub, tmp_path)) == second
    assert hub.requests.count(f"GET /datasets/{REPOSITORY}/resolve/main/{ARCHIVE}") == 1
    assert Path(root).stat().st_mtime_ns == extracted
    assert [path.name for path in Path(root).parent.iterdir()] == ["senteval"], "no partial directory is left"


@pytest.mark.parametrize("content", [b"<html>", archive(("../outside.txt", b"x"))], ids=["no tar", "escapes"])
def test_a_damaged_or_malicious_archive_is_refused_completely(hub, tmp_path, content):
    hub.commit(REPOSITORY, "broken", {ARCHIVE: content})
    error = read(start(hub, tmp_path))
    assert ARCHIVE in error and "is damaged" in error and "remove it and try again" in error
    assert not [path for path in (tmp_path / "hf" / "assets").rglob("*") if path.is_file()]


def test_without_the_archive_the_error_suggests_a_directory(hub, tmp_path):
    error = read(start(hub, tmp_path))
    assert REPOSITORY in error and "give a directory in SentEval's layout instead" in error and "\n" not in error


def test_a_hub_that_stalls_is_one_line(hub, tmp_path):
    hub.commit(REPOSITORY, "SentEval's data", {ARCHIVE: archive(("MR/rt-polarity.pos", b"good"))})
    hub.slow = {ARCHIVE: 0.2}  # a byte now and then: never silent for as long as the client waits
    error = read(Python("-c", FIND, **hub.environment(tmp_path / "hf", CSEZOO_HUB_TIMEOUT="3")))
    assert error.startswith(f"the download of {REPOSITORY} took longer than 3 seconds; check the network")


def test_a_download_that_the_client_gives_up_is_one_line(monkeypatch):
    """It does so after dozens of attempts, which take minutes."""

    def give_up(*_, **__):
        raise HTTPError("The read operation timed out")

    monkeypatch.setattr(senteval_files, "hf_hub_download", give_up)
    with pytest.raises(UserError, match=r"could not be loaded from the Hub \(HTTPError\); give a directory"):
        senteval_files.find_senteval("hub")
