"""Publishing survives a Hub that refuses, drops connections or corrupts files: the same command completes it."""

import pytest

from csezoo.training.errors import UserError
from csezoo.training.hub import within_time
from tests.hub_server import TOKEN
from tests.interpreters import run_python
from tests.repositories import assert_refused, local_files

REPO = "zoo/tiny"


def assert_complete(done, hub):
    """One commit contains all files."""
    assert done.returncode == 0, done.stderr
    initial, published = hub.repos[REPO]
    assert list(initial.files) == [".gitattributes"]
    assert {"model.safetensors", "README.md", "fingerprint.json", "results.json"} <= published.files.keys()
    assert TOKEN not in done.stdout + done.stderr


def assert_nothing_visible(hub):
    """There is no repository, or one without the files of the run."""
    assert all(len(commits) == 1 and list(commits[0].files) == [".gitattributes"] for commits in hub.repos.values())
    assert not hub.refs.get(REPO)


@pytest.mark.parametrize(
    ("where", "status", "way_out"),
    [
        ("/api/repos/create", 403, "the token has no write access"),
        pytest.param("/commit/", 401, "hf auth login", marks=pytest.mark.slow),
        pytest.param("/commit/", 412, "publish again", marks=pytest.mark.slow),
        pytest.param("/commit/", 429, "wait and publish again", marks=pytest.mark.slow),
        pytest.param("/commit/", 503, "publish again later", marks=pytest.mark.slow),
        pytest.param("/upload/", 500, "publish again later", marks=pytest.mark.slow),  # the client waits and retries
    ],
)
def test_nothing_is_visible_after_the_hub_refused(publish, hub, finished_run, where, status, way_out):
    hub.failures[where] = status
    assert_refused(publish(finished_run), REPO, str(status), way_out)
    assert_nothing_visible(hub)


@pytest.mark.slow
def test_nothing_is_visible_after_a_lost_connection_and_publishing_again_completes(publish, hub, finished_run):
    """The connection is lost during the upload, then during the commit."""
    for where in ("/upload/", "/commit/"):
        hub.cuts[where] = "before"
        assert_refused(publish(finished_run), "cannot be reached")
        assert_nothing_visible(hub)
        hub.cuts.clear()
    assert_complete(publish(finished_run), hub)


@pytest.mark.slow
def test_a_commit_whose_answer_was_lost_is_not_made_twice(publish, hub, finished_run):
    hub.cuts["/commit/"] = "after"
    assert_refused(publish(finished_run), "cannot be reached")
    hub.cuts.clear()
    done = publish(finished_run, "--tag", "v1")
    assert "nothing changes" in done.stdout
    assert_complete(done, hub)
    assert hub.refs[REPO]["v1"] == hub.repos[REPO][-1]


@pytest.mark.slow
def test_a_commit_is_not_tagged_before_its_files_were_downloaded_and_compared(publish, hub, finished_run):
    faults = [
        (lambda: hub.cuts.update({"/resolve/": "before"}), "publish again to finish"),
        (lambda: hub.failures.update({"/resolve/": 403}), "403"),
        (lambda: hub.corrupt.add("tokenizer.json"), "tokenizer.json has another checksum"),
        (lambda: hub.corrupt.add("model.safetensors"), "model.safetensors"),
        (lambda: hub.failures.update({"/tag/": 500}), "publish again to finish"),
    ]
    for fault, part in faults:
        fault()
        assert_refused(publish(finished_run, "--tag", "v1"), part)
        assert not hub.refs.get(REPO)
        hub.cuts.clear(), hub.failures.clear(), hub.corrupt.clear()
    assert_complete(publish(finished_run, "--tag", "v1"), hub)
    assert hub.refs[REPO]["v1"] == hub.repos[REPO][-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "step"),
    [
        ("/api/models/", "the request for zoo/tiny took longer than 4 seconds"),
        ("/commit/", "the commit to zoo/tiny took longer"),
        ("/resolve/", "was made but not checked; publish again to finish: the download of zoo/tiny took longer"),
    ],
)
def test_a_hub_that_sends_a_byte_now_and_then_ends_publishing_with_a_line(publish, hub, finished_run, where, step):
    """Each byte comes within the client's limits; the answers would take minutes."""
    hub.slow[where] = 0.5
    assert_refused(publish(finished_run, CSEZOO_HUB_TIMEOUT="4"), step, "set CSEZOO_HUB_TIMEOUT to more seconds")
    hub.slow.clear()
    assert_complete(publish(finished_run), hub)


@pytest.mark.parametrize("command", ["verify", "audit"])
def test_a_hub_that_sends_a_byte_now_and_then_ends_other_commands_with_a_line(hub, finished_run, tmp_path, command):
    hub.commit("zoo/tiny", "a model", local_files(finished_run / "best"))
    hub.slow["/resolve/"] = 0.5
    environment = hub.environment(tmp_path, CSEZOO_HUB_TIMEOUT="1.5")
    done = run_python("-m", "csezoo.training.cli", command, "zoo/tiny", **environment)
    assert done.returncode == 2
    assert "error: the download of zoo/tiny took longer than 1.5 seconds; check the network" in done.stderr


@pytest.mark.parametrize("limit", ["soon", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(monkeypatch, limit):
    monkeypatch.setenv("CSEZOO_HUB_TIMEOUT", limit)
    with pytest.raises(UserError, match=rf"^CSEZOO_HUB_TIMEOUT: '{limit}' must be a number of seconds above 0$"):
        within_time("a step", list)


def test_an_error_of_a_step_is_raised_as_it_is():
    def step():
        raise TimeoutError("the step's own")

    with pytest.raises(TimeoutError, match="^the step's own$"):
        within_time("a step", step)


@pytest.mark.slow
def test_a_wrong_token_is_refused_without_showing_it(publish, hub, finished_run):
    done = publish(finished_run, HF_TOKEN="hf_of_another_age")
    assert_refused(done, "401", "hf auth login")
    assert "hf_of_another_age" not in done.stdout + done.stderr
    assert hub.repos == {}
