"""Verifying a repository compares it with its fingerprint and names every difference."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.serving.fingerprint_csezoo import SENTENCES
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.files import read_json, write_json
from csezoo.training.publishing.fingerprints import verify_repository
from tests.clean_interpreter import run_without_csezoo
from tests.interpreters import as_a_user
from tests.repositories import PROMPT, edit_json, local_files, tiny_repository


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Four repositories: SimCSE as it is, one with a prompt, one with prefixes, one with whitening."""
    directory = tmp_path_factory.mktemp("saved")
    return {
        "plain": tiny_repository(directory / "plain"),
        "prompt": tiny_repository(directory / "prompt", kind="roberta", **PROMPT),
        "prefixes": tiny_repository(directory / "prefixes", "diffaug"),
        "whitening": tiny_repository(directory / "whitening", whitening_size=8),
    }


@pytest.fixture
def copy(saved, tmp_path):
    """Copies a repository, so that a test can change it."""

    def make(name):
        return shutil.copytree(saved[name], tmp_path / name)

    return make


def change_csezoo(directory, **values):
    """Change what the configuration says of the zoo's class."""
    path = directory / "config.json"
    edit_json(path, csezoo=read_json(path)["csezoo"] | values)


def change_tensor(directory, name, change, file="model.safetensors"):
    path = directory / file
    tensors = load_file(path)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


def assert_differs(directory, *parts):
    """The repository is refused with all parts in one line."""
    with pytest.raises(UserError) as refused:
        verify_repository(str(directory))
    for part in parts:
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["plain", "prompt", "prefixes", "whitening"])
def test_an_unchanged_repository_is_verified(saved, name):
    files, tokens, vectors = verify_repository(str(saved[name]))
    assert re.fullmatch(r"files: \d+ checksums match the fingerprint", files)
    assert "token ids: 8 sentences match the fingerprint" in tokens
    assert "vectors: 8 sentences match the fingerprint" in vectors


def test_the_fingerprint_covers_short_and_truncated_sentences_and_unknown_characters(saved):
    fingerprint = read_json(saved["plain"] / "fingerprint.json")
    lengths = [len(ids) for ids in fingerprint["token_ids"]]
    assert min(lengths) == 3 and max(lengths) == lengths[-1] == 64
    assert fingerprint["sentences"] == SENTENCES
    assert 1 in fingerprint["token_ids"][5]  # [UNK]
    assert {len(vector) for vector in fingerprint["embeddings"]} == {32}
    files = local_files(saved["plain"]).keys()
    assert "1_Pooling/config.json" in files
    assert fingerprint["files"].keys() == files - {"fingerprint.json", "README.md", "simcse.svg"}  # the card's picture
    assert {"torch", "transformers"} <= fingerprint["versions"].keys()


def test_a_changed_repository_ends_the_command_with_one_line_and_exit_code_2(copy, capsys):
    directory = copy("plain")
    change_tensor(directory, "embeddings.LayerNorm.bias", torch.zeros_like)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(directory)])
    captured = capsys.readouterr()
    assert ended.value.code == 2 and captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(
        f"error: {directory} does not match its fingerprint: model.safetensors has another checksum; "
    )


def test_added_files_are_named_and_those_of_a_card_and_a_run_are_not(copy):
    directory = copy("plain")
    for name in ("recipe.yaml", "results.json", "LICENSE", "training_curves.png", "diffcse.svg", ".gitattributes"):
        (directory / name).write_text("a", encoding="utf-8")
    verify_repository(str(directory))
    (directory / "deep").mkdir()
    (directory / "deep" / "notes.txt").write_text("a", encoding="utf-8")
    (directory / "adapter_model.safetensors").symlink_to("nowhere")
    assert_differs(directory, "adapter_model.safetensors was added", "deep/notes.txt was added")


@pytest.mark.parametrize(
    ("name", "file", "tensor"),
    [
        ("plain", "model.safetensors", "embeddings.LayerNorm.bias"),
        ("plain", "model.safetensors", "encoder.layer.2.attention.self.value.weight"),
        ("prefixes", "model.safetensors", "prefixes"),
        ("prefixes", "model.safetensors", "backbone.embeddings.LayerNorm.bias"),
        ("whitening", "2_Dense/model.safetensors", "linear.bias"),
    ],
)
def test_a_zeroed_tensor_changes_a_checksum_and_all_vectors(copy, name, file, tensor):
    directory = copy(name)
    change_tensor(directory, tensor, torch.zeros_like, file)
    assert_differs(directory, f"{file} has another checksum", "8 of 8 vectors differ")


def test_a_change_that_affects_one_sentence_is_named_with_that_sentence(copy):
    directory = copy("plain")
    name = "embeddings.position_embeddings.weight"
    change_tensor(directory, name, lambda table: torch.cat([table[:40], torch.zeros_like(table[40:])]))
    assert_differs(directory, "1 of 8 vectors differ", "'the river runs past")


def test_a_changed_tokenizer_is_named_as_the_cause_not_the_model(copy, saved):
    directory = copy("plain")
    vocabulary = read_json(directory / "tokenizer.json")
    ids = vocabulary["model"]["vocab"]
    ids["the"], ids["old"] = ids["old"], ids["the"]
    write_json(directory / "tokenizer.json", vocabulary)
    with pytest.raises(ValueError) as refused:
        load_published(directory).verify()
    assert "other token ids for" in str(refused.value) and "'the river runs" in str(refused.value)
    assert "'A cat sits" in str(refused.value) and "'Yes'" not in str(refused.value)
    assert "vectors" not in str(refused.value)
    assert_differs(directory, "tokenizer.json has another checksum", "other token ids for")


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("plain", {"pooling": "mean"}, "1_Pooling/config.json has pooling_mode: cls, config.json has mean"),
        ("prefixes", {"prefix_positions": 4}, "mis-shaped prefixes"),
        ("prefixes", {"prefix_positions": 0}, "unexpected prefixes"),
        ("prefixes", {"pooling": "mean"}, "8 of 8 vectors differ"),
        ("prefixes", {"pooling": "median"}, "'median' must be one of"),
    ],
)
def test_a_changed_configuration_is_refused(copy, name, change, problem):
    directory = copy(name)
    change_csezoo(directory, **change)
    assert_differs(directory, "config.json has another checksum", problem)


def test_a_repository_without_the_zoo_s_key_is_no_model_of_the_zoo(copy):
    directory = copy("plain")
    config = read_json(directory / "config.json")
    del config["csezoo"]
    write_json(directory / "config.json", config)
    assert_differs(directory, "config.json has another checksum", "it is not a model of the zoo")


def test_changed_code_and_a_missing_file_are_named(copy):
    directory = copy("plain")
    with (directory / "pooling_csezoo.py").open("a", encoding="utf-8") as file:
        file.write("# one line more\n")
    (directory / "modules.json").unlink()
    assert_differs(directory, "pooling_csezoo.py has another checksum", "modules.json is missing")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_verified_with_a_larger_tolerance(saved, copy, dtype):
    load_published(saved["plain"], dtype=dtype).verify()
    directory = copy("plain")
    change_tensor(directory, "embeddings.LayerNorm.bias", torch.zeros_like)
    with pytest.raises(ValueError, match="8 of 8 vectors differ"):
        load_published(directory, dtype=dtype).verify()


def test_a_model_verifies_itself_without_csezoo(saved, copy, tmp_path):
    changed = copy("prefixes")
    change_tensor(changed, "prefixes", torch.zeros_like)
    code = f"""
import json
from transformers import AutoModel

lines = AutoModel.from_pretrained({str(saved["prefixes"])!r}, trust_remote_code=True).verify()
try:
    AutoModel.from_pretrained({str(changed)!r}, trust_remote_code=True).verify()
except ValueError as error:
    print(json.dumps([*lines, str(error)]))
"""
    *lines, error = run_without_csezoo(code, tmp_path)
    assert len(lines) == 2
    assert "8 of 8 vectors differ" in error


def test_a_missing_or_broken_fingerprint_is_refused(copy, tmp_path):
    directory = copy("plain")
    path = directory / "fingerprint.json"
    whole = read_json(path)
    broken = {
        json.dumps({**whole, name: value}): "expected texts as sentences, and for each numbers"
        for name, value in (
            *(("sentences", [1]), ("token_ids", [["a"]]), ("token_ids", 1), ("embeddings", [[[0.5]]])),
            *(("token_ids", [[]] * 8), ("embeddings", []), ("embeddings", whole["embeddings"][:1])),
        )
    }
    broken |= {"{": "not valid JSON", '{"files": {}}': "has no embeddings, sentences, token_ids"}
    for content, problem in broken.items():
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=problem):
            verify_repository(str(directory))
    path.unlink()
    with pytest.raises(UserError, match="has no fingerprint.json"):
        verify_repository(str(directory))
    with pytest.raises(UserError, match="neither a directory nor a valid name"):
        verify_repository(str(tmp_path / "nowhere"))


VERIFY_EACH = """
import sys
from csezoo.training.errors import UserError
from csezoo.training.publishing.fingerprints import verify_repository
for name in sys.argv[1:]:
    try:
        print(verify_repository(name))
    except UserError as error:
        print(error)
"""


def test_what_cannot_be_read_is_named(copy, tmp_path):
    directory = copy("plain")
    modes = {"model.safetensors": 0, "fingerprint.json": 0, "1_Pooling": 0, "./1_Pooling": 0o444, ".": 0, "./": 0o444}
    cases = {name: tmp_path / str(number) for number, name in enumerate(modes)}
    user = as_a_user()
    try:
        for name, case in cases.items():
            (shutil.copytree(directory, case) / name).chmod(modes[name])
        command = [*user, sys.executable, "-W", "ignore", "-c", VERIFY_EACH, *map(str, cases.values())]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    finally:
        for name, case in cases.items():
            (case / name).chmod(0o755)
    assert done.returncode == 0, done.stderr
    for line, (name, case) in zip(done.stdout.splitlines(), cases.items(), strict=True):
        place = f"{name} cannot be read (Permission denied)" if "." in name.strip("./") else f"{case / name} cannot be"
        assert place in line, line


def test_a_model_that_was_not_loaded_from_a_repository_cannot_be_verified(saved):
    model = load_published(saved["plain"])
    fresh = type(model)(model.config)
    with pytest.raises(OSError, match="fingerprint.json: the model was loaded from no repository that has one"):
        fresh.verify()
