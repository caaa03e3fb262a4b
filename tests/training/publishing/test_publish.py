"""Publish with the real Hub client to a local Hub server, and load from it as a new user would."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, parse_eval_result_entries
from safetensors.torch import load_file, save_file

from csezoo.modeling.contrastive.published import load_published
from csezoo.training.evaluation.tasks.sts import HUB
from csezoo.training.files import read_json, write_json
from csezoo.training.publishing.audit import audit
from csezoo.training.publishing.staging import stage
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES
from tests.hub_server import TOKEN, HubServer
from tests.interpreters import run_python
from tests.repositories import assert_refused, local_files, publish_each, publish_to

TEXTS = SENTENCES[:5]
LOAD = f"""
import json
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

model = AutoModel.from_pretrained("zoo/tiny", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("zoo/tiny")
pooled = model(**tokenizer({TEXTS}, padding=True, return_tensors="pt")).pooler_output
theirs = SentenceTransformer("zoo/tiny", device="cpu").encode({TEXTS})
model.verify()
print(json.dumps([vectors.tolist() for vectors in (model.encode({TEXTS}), pooled, theirs)]))
"""
SNAPSHOT = """
import json
from pathlib import Path
from huggingface_hub import snapshot_download

snapshot = Path(snapshot_download("zoo/tiny"))
print(json.dumps(sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())))
"""


def seed(hub, run, tmp_path):
    """Put the files of a run on the Hub, as publishing it would."""
    staged = tmp_path / "staged"
    stage(str(run), "zoo/tiny", staged)
    hub.commit("zoo/tiny", "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n", **local_files(staged)})


@pytest.fixture(scope="module")
def published(finished, tmp_path_factory):
    """A Hub to which the run was published, and the finished command."""
    with HubServer() as hub:
        yield hub, publish_to(hub, tmp_path_factory.mktemp("home"), finished)


def test_a_link_inside_of_the_run_is_published_as_its_file(finished_run, tmp_path):
    (finished_run / "best" / "notes.md").symlink_to("README.md")
    stage(str(finished_run), "zoo/tiny", tmp_path / "staged")
    assert (tmp_path / "staged" / "notes.md").read_bytes() == (finished_run / "best" / "README.md").read_bytes()


def test_one_commit_contains_code_weights_tokenizer_card_recipe_and_results(published, finished):
    hub, done = published
    assert done.returncode == 0, done.stderr
    initial, commit = hub.repos["zoo/tiny"]
    expected = local_files(finished / "best")
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modeling_csezoo.py",
        "1_Pooling/config.json",
    } <= expected.keys()
    assert b"REPOSITORY" in expected["README.md"]  # the card in the run does not change
    expected["README.md"] = expected["README.md"].replace(b"REPOSITORY", b"zoo/tiny")
    files = dict(commit.files)
    recipe, results = yaml.safe_load(files.pop("recipe.yaml")), json.loads(files.pop("results.json"))
    assert files == {**initial.files, **expected}
    # no directory of this machine
    files_of_recipe = {"train_file": "train.txt", "teachers": ["teacher"]}
    assert recipe == {"name": "tiny", "method": "simcse", **files_of_recipe, "named_prompts": {"query": "/query "}}
    assert results == {"model": "tiny", "base_model": "bert", "neighbours": [{"query": "/a/ sentence"}]}
    assert commit.message == "Publish with csezoo"
    assert not hub.private
    assert TOKEN not in done.stdout + done.stderr


def test_the_command_prints_every_check_every_change_and_the_url(published):
    hub, done = published
    lines = done.stdout.splitlines()
    commit = hub.repos["zoo/tiny"][-1]
    files = sorted(commit.files.keys() - {".gitattributes"})
    assert [line.split()[1] for line in lines if line.startswith("add ")] == files
    checks = [number for number, line in enumerate(lines) if line.startswith("checked ")]
    assert checks == [0, len(files) + 1, len(files) + 2]  # before the changes; in a new process; downloaded again
    assert lines[-1] == f"{hub.url}/zoo/tiny/commit/{commit.id}"


def test_a_published_model_loads_without_csezoo_and_its_snapshot_loads_offline(published, finished, tmp_path):
    hub, _ = published
    environment = hub.environment(tmp_path / "user")
    loaded = run_without_csezoo(LOAD, tmp_path, **environment)
    expected = load_published(finished / "best").encode(TEXTS)
    for vectors in loaded:
        np.testing.assert_allclose(vectors, expected, atol=1e-6, rtol=0)

    environment = hub.environment(tmp_path / "another")
    files = run_without_csezoo(SNAPSHOT, tmp_path, **environment)
    assert files == sorted(hub.repos["zoo/tiny"][-1].files)
    hub.requests.clear()
    assert run_without_csezoo(LOAD, tmp_path, **{**environment, "HF_HUB_OFFLINE": "1"}) == loaded
    assert hub.requests == []


def test_verify_and_audit_work_on_a_revision_of_a_hub_repository(published, tmp_path):
    hub, _ = published
    hub.requests.clear()
    sha = hub.repos["zoo/tiny"][-1].id

    def run(*arguments):
        command = ["-W", "ignore", "-m", "csezoo.training.cli", *arguments]
        return run_python(*command, **hub.environment(tmp_path / "home"))

    audited = run("audit", "zoo/tiny", "--revision", sha)
    assert audited.stdout == f"no findings in zoo/tiny at {sha}\n", audited.stderr
    assert not any("safetensors" in request for request in hub.requests if request.startswith("GET /zoo"))
    verified = run("verify", "zoo/tiny", "--revision", sha)
    assert len(verified.stdout.splitlines()) == 3, verified.stderr
    assert_refused(run("verify", "zoo/tiny", "--revision", "v9"), "zoo/tiny could not be downloaded")
    hub.failures["/api/models"] = 503  # the files in the cache may be a part of the repository
    refused = run("audit", "zoo/tiny", "--revision", sha)
    hub.failures.clear()
    assert refused.returncode == 2
    assert "without it, an audit may miss some" in refused.stderr.splitlines()[-1], refused.stderr


@pytest.mark.slow
def test_results_on_data_sets_of_the_hub_are_published_for_its_leaderboards(publish, hub, finished_run, tmp_path):
    card = ModelCard.load(finished_run / "best" / "README.md")
    dataset, revision, _ = HUB["STS12"]
    measured = {"task_type": "STS", "metric_type": "cosine_spearman", "metric_value": 72.37}
    of_the_hub = {"dataset_type": dataset, "dataset_revision": revision}
    card.data.model_name = "tiny"
    card.data.eval_results = [
        EvalResult(dataset_name="STS12", **of_the_hub, **measured),
        EvalResult(dataset_name="STS13", dataset_type="SentEval STS13", **measured),
        EvalResult(dataset_name="STSBenchmark-dev", dataset_type="mteb/stsbenchmark-sts", **measured),
    ]
    card.save(finished_run / "best" / "README.md")
    done = publish(finished_run)
    assert done.returncode == 0, done.stderr
    files = hub.repos["zoo/tiny"][-1].files
    assert [name for name in files if name.startswith(".eval")] == [".eval_results/STS12.yaml"]
    (entry,) = parse_eval_result_entries(yaml.safe_load(files[".eval_results/STS12.yaml"]))
    expected = EvalResultEntry(dataset, "STS12_default_test", 72.37, dataset_revision=revision, notes=entry.notes)
    assert entry == expected and "cosines" in entry.notes
    stage(str(finished_run), "zoo/tiny", tmp_path / "staged")
    assert audit(tmp_path / "staged") == []


@pytest.mark.slow
def test_scores_of_earlier_weights_do_not_stay_on_the_leaderboards(publish, hub, finished_run, tmp_path):
    """The new weights have no scores on data sets of the Hub. Files that csezoo never writes are kept."""
    seed(hub, finished_run, tmp_path)
    files = hub.repos["zoo/tiny"][-1].files
    scores = {f".eval_results/{name}.yaml": b"- value: 72.37\n" for name in ("STS12", "STSBenchmark-dev", "GSM8K")}
    hub.commit("zoo/tiny", "scores", {**files, **scores})
    done = publish(finished_run)
    assert done.returncode == 0, done.stderr
    del scores[".eval_results/STS12.yaml"]
    assert hub.repos["zoo/tiny"][-1].files == {**files, **scores}
    plan = [line.split() for line in done.stdout.splitlines() if not line.startswith(("checked", "http"))]
    assert plan == [["delete", ".eval_results/STS12.yaml"]]


@pytest.mark.slow
def test_publishing_again_replaces_changed_files_and_deletes_removed_ones(publish, hub, finished_run, tmp_path):
    seed(hub, finished_run, tmp_path)
    best = finished_run / "best"
    card = (best / "README.md").read_text(encoding="utf-8") + "\nOne line more.\n"
    (best / "README.md").write_text(card, encoding="utf-8")
    (best / "more").mkdir()
    (best / "more" / "notes.md").write_text("a", encoding="utf-8")
    (best / ".DS_Store").write_text("hidden", encoding="utf-8")
    done = publish(best)  # a repository directory can be published too; it has no recipe and no results
    assert done.returncode == 0, done.stderr
    before, after = hub.repos["zoo/tiny"]
    changed = {"README.md": card.replace("REPOSITORY", "zoo/tiny").encode(), "more/notes.md": b"a"}
    expected = {**before.files, **changed}
    del expected["recipe.yaml"], expected["results.json"]
    assert after.files == expected
    plan = [line.split()[:2] for line in done.stdout.splitlines() if not line.startswith(("checked", "http"))]
    assert plan == [
        ["change", "README.md"],
        ["add", "more/notes.md"],
        ["delete", "recipe.yaml"],
        ["delete", "results.json"],
    ]


@pytest.mark.slow
def test_publishing_the_same_files_again_makes_no_commit_but_adds_a_missing_tag(publish, hub, finished_run, tmp_path):
    seed(hub, finished_run, tmp_path)
    done = publish(finished_run, "--tag", "v1")
    assert done.returncode == 0, done.stderr
    (commit,) = hub.repos["zoo/tiny"]
    assert "nothing changes" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{hub.url}/zoo/tiny/commit/{commit.id}"
    assert hub.refs["zoo/tiny"] == {"v1": commit}
    (finished_run / "results.json").write_text("{}", encoding="utf-8")
    assert_refused(publish(finished_run, "--tag", "v1"), "--tag v1", "another commit")
    assert len(hub.repos["zoo/tiny"]) == 1


@pytest.mark.slow
def test_a_pull_request_does_not_change_the_main_branch(publish, hub, finished_run):
    hub.commit("zoo/tiny", "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})
    done = publish(finished_run, "--create-pr")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{hub.url}/zoo/tiny/discussions/1"
    assert len(hub.repos["zoo/tiny"]) == 1
    assert "model.safetensors" in hub.refs["zoo/tiny"]["refs/pr/1"].files


@pytest.mark.slow
def test_private_creates_a_private_repository_and_refuses_a_public_one(publish, hub, finished_run):
    hub.commit("zoo/open", "initial commit", {})
    assert_refused(publish(finished_run, "--private", to="zoo/open"), "zoo/open is public", "--private")
    assert len(hub.repos["zoo/open"]) == 1
    done = publish(finished_run, "--private")
    assert done.returncode == 0, done.stderr
    assert hub.private == {"zoo/tiny"}


def zero_a_tensor(best):
    tensors = load_file(best / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"] = torch.zeros(32)
    save_file(tensors, best / "model.safetensors", metadata={"format": "pt"})


def zero_a_tensor_and_its_checksum(best):
    zero_a_tensor(best)
    forget_checksum(best, "model.safetensors")


def forget_checksum(best, name):
    fingerprint = read_json(best / "fingerprint.json")
    del fingerprint["files"][name]
    write_json(best / "fingerprint.json", fingerprint)


def add_a_pickle(best):
    torch.save({}, best / "pytorch_model.bin")


def break_the_code(best):
    (best / "pooling_csezoo.py").write_text("def pool(): return 1\n", encoding="utf-8")
    forget_checksum(best, "pooling_csezoo.py")


def write_card(text):
    return lambda best: (best / "README.md").write_text(text, encoding="utf-8")


def link_out(place):
    """Put a link to the outside into a run's directory."""

    def link(best):
        outside = best.parent.parent / "secret.txt"
        outside.write_text("secret", encoding="utf-8")
        (best.parent / place).unlink(missing_ok=True)
        (best.parent / place).symlink_to(outside.parent if place == "best/pictures" else outside)

    return link


BAD_RUNS = {
    "another tensor": (zero_a_tensor, ["model.safetensors has another checksum"]),
    "another tensor and checksum": (zero_a_tensor_and_its_checksum, ["a new process", "8 of 8 vectors differ"]),
    "broken code": (break_the_code, ["csezoo audit: 1 finding(s)", "pooling_csezoo.py", "not code of a csezoo"]),
    "a pickle": (add_a_pickle, ["csezoo audit: 1 finding(s)", "pytorch_model.bin", "or a pickle"]),
    "a broken card": (write_card("---\nlicense: [\n---\n"), ["README.md", "cannot be read"]),
    "an incomplete card": (
        write_card("---\nlicense: mit\ntags: [a]\n---\n"),
        ["no language, library_name, pipeline_tag"],
    ),
    "no weights": (
        lambda best: (best / "model.safetensors").unlink(),
        ["best has no model.safetensors", "finished best/"],
    ),
    "no recipe": (lambda best: (best.parent / "recipe.yaml").unlink(), ["run has no recipe.yaml"]),
    "a linked file": (link_out("best/notes.md"), ["best/notes.md is a link to a place outside of"]),
    "linked results": (link_out("results.json"), ["results.json is a link to a place outside of"]),
    "a linked directory": (link_out("best/pictures"), ["best/pictures is a link to a place outside of"]),
}
# Options, and parts of the error line.
BAD_COMMANDS = {
    "no owner": (["--to", "tiny"], ["'tiny'", "ORG/NAME"]),
    "no name": (["--to", "zoo/so--tiny"], ["'zoo/so--tiny'", "Cannot have --"]),
    "a tag of a pull request": (["--to", "zoo/tiny", "--create-pr", "--tag", "v1"], ["--tag v1", "once it is merged"]),
    "no directory": (["--to", "zoo/tiny"], ["nowhere has no config.json", "run directory"]),
}

SILENT = {"a linked file", "linked results", "a linked directory", *BAD_COMMANDS}


@pytest.fixture(scope="module")
def refused(finished, tmp_path_factory):
    """What one process answers to each bad run and each bad command, and the Hub after them.

    What needs no Hub to be refused has one of its own, which must get no request.
    """
    directory = tmp_path_factory.mktemp("bad")
    commands = {}
    for name, (damage, _) in BAD_RUNS.items():
        run = shutil.copytree(finished, directory / name / "run")
        damage(run / "best")
        commands[name] = [str(run), "--to", "zoo/tiny"]
    for name, (options, _) in BAD_COMMANDS.items():
        run = {"no directory": directory / "nowhere", "a tag of a pull request": directory}.get(name, finished)
        commands[name] = [str(run), *options]
    answers = {}
    for names in (SILENT, commands.keys() - SILENT):
        with HubServer() as hub:
            done = publish_each(hub, directory / "hf", [commands[name] for name in names])
        answers |= {name: (answer, hub) for name, answer in zip(names, done, strict=True)}
    return answers


@pytest.mark.parametrize("name", [*BAD_RUNS, *BAD_COMMANDS])
def test_a_bad_run_or_command_is_refused_before_a_repository_is_created(refused, name):
    done, hub = refused[name]
    _, parts = {**BAD_RUNS, **BAD_COMMANDS}[name]
    assert_refused(done, *parts)
    assert hub.repos == {}
    assert hub.requests == [] or name not in SILENT


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"HF_TOKEN": ""}, ["no token found", "hf auth login"]),
        ({"HF_HUB_OFFLINE": "1"}, ["offline mode", "unset", "HF_HUB_OFFLINE"]),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, ["cannot be reached", "http://127.0.0.1:9"]),
    ],
    ids=["no token", "offline", "no server"],
)
def test_missing_tokens_and_networks_are_refused_before_a_repository_is_created(
    publish, hub, finished_run, options, parts
):
    assert_refused(publish(finished_run, **options), *parts)
    assert hub.repos == {}
