"""Publishing with the real client to a Hub on the loopback interface, and loading from it as a stranger would."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from csezoo.modeling import SimCSEConfig, SimCSEModel
from csezoo.training.prompts import serving_tokenizer, template_token_ids
from csezoo.training.recipes import make_recipe
from csezoo.training.repository import save_repository
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES, tiny_config, tiny_tokenizer
from tests.hub_server import TOKEN, HubServer

TEXTS = SENTENCES[:5]
LOAD = f"""
import json
from transformers import AutoModel, AutoTokenizer

model = AutoModel.from_pretrained("zoo/tiny", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("zoo/tiny", trust_remote_code=True)
found = model(**tokenizer({TEXTS}, padding=True, return_tensors="pt")).pooler_output
print(json.dumps({{"encode": model.encode({TEXTS}).tolist(), "pooler_output": found.tolist()}}))
"""
SNAPSHOT = """
import json, os
from huggingface_hub import snapshot_download

print(json.dumps(sorted(os.listdir(snapshot_download("zoo/tiny")))))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run directory with a finished model in it."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer("bert")
    serving = serving_tokenizer(tokenizer, template_token_ids(tokenizer), max_length=64)
    model = SimCSEModel(SimCSEConfig(backbone_config=tiny_config("bert"))).eval()
    recipe = make_recipe({"name": "tiny", "method": "simcse", "base_model": "zoo/tiny-bert"})
    run.mkdir()
    save_repository(run / "best", model, serving, recipe, [])
    (run / "results.json").write_text("{}", encoding="utf-8")  # what a finished run leaves
    return run


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it, for a test to change."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


@pytest.fixture
def publish(hub, tmp_path):
    """`csezoo publish` in a process of its own: the client reads the Hub's address when it is imported."""

    def command(run, *options, to="zoo/tiny", **environment):
        return subprocess.run(
            [sys.executable, "-m", "csezoo.training.cli", "publish", str(run), "--to", to, *options],
            capture_output=True,
            text=True,
            env={**os.environ, **hub.environment(tmp_path / "hf"), **environment},
            timeout=120,
        )

    return command


def local_files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def assert_refused(done, *parts):
    """One line that holds all parts, and exit code 2; the token is nowhere."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line
    assert TOKEN not in line


def test_publishing_makes_one_commit_with_every_file_and_the_repository_s_name_on_the_card(publish, hub, run):
    done = publish(run)
    assert done.returncode == 0, done.stderr
    initial, published = hub.repos["zoo/tiny"]
    assert done.stdout == f"{hub.url}/zoo/tiny/commit/{published.id}\n"
    expected = local_files(run / "best")
    assert {"config.json", "model.safetensors", "tokenizer.json", "modeling_simcse.py", "README.md"} <= expected.keys()
    assert b"REPOSITORY" in expected["README.md"]  # the run's own card stays as it is
    expected["README.md"] = expected["README.md"].replace(b"REPOSITORY", b"zoo/tiny")
    assert published.files == {**initial.files, **expected}
    assert published.message == "Publish with csezoo"
    assert not hub.private


def test_a_published_model_loads_where_the_zoo_is_not_installed_and_again_offline(publish, hub, run, tmp_path):
    assert publish(run).returncode == 0
    environment = hub.environment(tmp_path / "stranger")
    loaded = run_without_csezoo(LOAD, tmp_path, **environment)
    expected = SimCSEModel.from_pretrained(run / "best").encode(TEXTS)
    np.testing.assert_allclose(loaded["encode"], expected, atol=1e-6, rtol=0)
    np.testing.assert_allclose(loaded["pooler_output"], expected, atol=1e-6, rtol=0)

    hub.requests.clear()
    assert run_without_csezoo(LOAD, tmp_path, **{**environment, "HF_HUB_OFFLINE": "1"}) == loaded
    assert hub.requests == []


def test_an_unfinished_run_is_refused(run, hub, publish):
    (run / "results.json").unlink()
    done = publish(run)
    assert done.returncode == 2
    assert "is not finished" in done.stderr
    assert not hub.repos


def test_a_snapshot_holds_every_file(publish, hub, run, tmp_path):
    assert publish(run).returncode == 0
    files = run_without_csezoo(SNAPSHOT, tmp_path, **hub.environment(tmp_path / "stranger"))
    assert files == sorted(hub.repos["zoo/tiny"][-1].files)


def test_publishing_again_replaces_what_changed_and_deletes_what_is_gone(publish, hub, run):
    assert publish(run).returncode == 0
    best = run / "best"
    (best / "README.md").write_text("---\nlicense: mit\n---\n\nAnother card.\n", encoding="utf-8")
    (best / "modules.json").unlink()
    (best / "1_Pooling").mkdir()
    (best / "1_Pooling" / "config.json").write_text("{}", encoding="utf-8")
    (best / ".DS_Store").write_text("hidden", encoding="utf-8")
    assert publish(best).returncode == 0  # the repository itself will do too
    _, before, after = hub.repos["zoo/tiny"]
    changed = {"README.md": (best / "README.md").read_bytes(), "1_Pooling/config.json": b"{}"}
    expected = {**before.files, **changed}
    del expected["modules.json"]
    assert after.files == expected
    assert ".gitattributes" in after.files


def test_publishing_the_same_again_makes_no_commit(publish, hub, run):
    first, second = publish(run), publish(run)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    assert len(hub.repos["zoo/tiny"]) == 2


def test_private_makes_a_private_repository_and_never_publishes_to_a_public_one(publish, hub, run):
    assert publish(run, "--private").returncode == 0
    assert hub.private == {"zoo/tiny"}
    hub.commit("zoo/open", "initial commit", {})
    assert_refused(publish(run, "--private", to="zoo/open"), "zoo/open is public", "--private")
    assert len(hub.repos["zoo/open"]) == 1


@pytest.mark.parametrize(
    ("where", "status", "way_out"),
    [
        ("/api/repos/create", 403, "take one that may"),
        ("/upload/", 403, "take one that may"),
        ("/commit/", 412, "publish again"),
        ("/commit/", 503, "publish again later"),
    ],
)
def test_a_refusal_of_the_hub_is_one_line_and_leaves_no_commit(publish, hub, run, where, status, way_out):
    hub.failures[where] = status
    assert_refused(publish(run), "zoo/tiny", str(status), way_out)
    assert all(len(commits) == 1 for commits in hub.repos.values())  # the one that makes the repository


def test_a_wrong_token_is_refused_without_showing_it(publish, hub, run):
    done = publish(run, HF_TOKEN="hf_of_another_age")
    assert_refused(done, "401", "hf auth login")
    assert "hf_of_another_age" not in done.stderr
    assert hub.repos == {}


@pytest.mark.parametrize(
    ("environment", "to", "parts"),
    [
        ({"HF_TOKEN": ""}, "zoo/tiny", ["no token found", "hf auth login"]),
        ({"HF_HUB_OFFLINE": "1"}, "zoo/tiny", ["offline mode", "unset", "HF_HUB_OFFLINE"]),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "zoo/tiny", ["out of reach", "http://127.0.0.1:9"]),
        ({}, "tiny", ["'tiny'", "ORG/NAME"]),
        ({}, "zoo/so--tiny", ["'zoo/so--tiny'", "Cannot have --"]),
    ],
    ids=["no token", "offline", "no server", "no owner", "no name"],
)
def test_what_can_be_known_before_asking_the_hub(publish, hub, run, environment, to, parts):
    assert_refused(publish(run, to=to, **environment), *parts)
    assert hub.repos == {}


def test_a_card_whose_metadata_the_hub_cannot_read_is_refused(publish, hub, run):
    (run / "best" / "README.md").write_text("---\nlicense: [\n---\n", encoding="utf-8")
    assert_refused(publish(run), "README.md", "not valid YAML")
    assert len(hub.repos["zoo/tiny"]) == 1


def test_a_directory_that_is_no_repository_is_refused_with_the_way_out(publish, hub, run, tmp_path):
    (run / "best" / "model.safetensors").unlink()
    assert_refused(publish(run), "best has no model.safetensors", "finished best/")
    assert_refused(publish(tmp_path / "nowhere"), "nowhere has no config.json", "run directory")
    assert hub.requests == []
