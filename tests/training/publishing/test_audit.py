"""The audit finds what a repository could do to a user who trusts it, without running its code."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from csezoo.modeling import METHODS
from csezoo.training.cli.parser import main
from csezoo.training.publishing.audit import Finding, audit, audit_json
from tests.repositories import tiny_repository


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return tiny_repository(tmp_path_factory.mktemp("published") / "tiny")


@pytest.fixture
def repository(published, tmp_path):
    return shutil.copytree(published, tmp_path / "repository")


@pytest.mark.parametrize("method", METHODS)
def test_the_zoo_s_own_repositories_have_no_findings(method, tmp_path):
    """So their code imports only torch, transformers and peft, and uses neither network nor files nor `eval`."""
    assert audit(tiny_repository(tmp_path / method, method)) == []


def test_code_of_the_zoo_that_writes_outside_of_the_checkpoint_is_a_finding(repository):
    path = repository / "saved_files.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("{directory}/modules.json", "/etc/modules.json"), encoding="utf-8")
    findings = audit(repository)
    assert {(finding.group, finding.file) for finding in findings} == {("code", "saved_files.py")}
    assert all("save something other than the checkpoint" in finding.why for finding in findings)


@pytest.mark.parametrize(
    ("name", "change", "group", "why"),
    [
        ("config.json", {"auto_map": {"AutoModel": "evil/code--m.Model"}}, "auto_map", "code of another repository"),
        ("config.json", {"auto_map": {"AutoModel": "gone.Model"}}, "auto_map", "in no file of the repository"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "e/c--t.T"]}}, "auto_map", "'e/c--t.T'"),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "e/c--p.P"}}, "auto_map", "'e/c--p.P'"),
        ("config.json", {"custom_pipelines": {"x": {"impl": "e/c--p.P"}}}, "auto_map", "impl: 'e/c--p.P'"),
        ("config.json", {"_attn_implementation_internal": "evil/kernel"}, "config", "kernels of 'evil/kernel'"),
        ("config.json", {"backbone_config": {"attn_implementation": {"": "e/k:f"}}}, "config", "kernels of 'e/k:f'"),
        ("config.json", {"deep": [{"trust_remote_code": True}]}, "config", "trusts other repositories"),
        (
            "generation_config.json",
            {"custom_generate": "evil/generate"},
            "config",
            "downloads and runs code ('evil/generate')",
        ),
    ],
)
def test_a_configuration_that_loads_code_from_elsewhere_is_a_finding(repository, name, change, group, why):
    path = repository / name
    path.parent.mkdir(exist_ok=True)
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(before | change), encoding="utf-8")
    (finding,) = audit(repository)
    assert (finding.group, finding.file) == (group, name)
    assert why in finding.why


def test_a_foreign_class_among_sentence_transformers_modules_is_a_finding():
    modules = [{"type": "sentence_transformers.models.Pooling"}, {"type": "mine.Pooling"}, {"type": "e/c--m.Pooling"}]
    missing, foreign = audit_json("modules.json", json.dumps(modules).encode(), {"modules.json"})
    assert "'mine.Pooling' is in no file" in missing.why
    assert "'e/c--m.Pooling' is code of another repository" in foreign.why
    assert not list(audit_json("modules.json", json.dumps(modules[:2]).encode(), {"modules.json", "mine.py"}))


@pytest.mark.parametrize("value", [True, "false", 1, 0, None, [], {"inner": 0}])
def test_only_a_plain_false_trusts_no_remote_code(value):
    (finding,) = audit_json("config.json", json.dumps({"trust_remote_code": value}).encode(), set())
    assert finding.why == f"trust_remote_code: trusts other repositories ({value!r})"
    assert not list(audit_json("config.json", b'{"trust_remote_code": false}', set()))


def test_a_finding_is_a_line_with_its_place():
    assert str(Finding("code", "m.py", 3, "imports os")) == "code      m.py:3: imports os"
    assert str(Finding("config", "config.json", None, "why")) == "config    config.json: why"


def test_json_that_cannot_be_read_is_a_finding():
    (broken,) = audit_json("config.json", b"{", set())
    (deep,) = audit_json("config.json", b"[" * 100_000, set())
    assert "is not valid JSON" in broken.why and "is not valid JSON" in deep.why


def test_pickles_are_found_by_suffix_and_by_content(repository):
    torch.save({"a": torch.zeros(1)}, repository / "pytorch_model.bin")
    torch.save({"a": torch.zeros(1)}, repository / "weights.txt")
    (repository / "harmless.txt").write_bytes(pickle.dumps({"a": 1}))
    (repository / "protocol.txt").write_bytes(pickle.dumps(Path("a"), protocol=0))
    (repository / "instance.md").write_bytes(b"(S'ls'\nios\nsystem\n.")
    (repository / "headerless.txt").write_bytes(b"\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R.")
    (repository / "openvino").mkdir()
    (repository / "openvino" / "headerless.bin").write_bytes(b"\x82\x01\x8c\x04echo\x85R.")
    fields = [(f"field_{number}", "i4") for number in range(30)]  # so that the object is named after 256 bytes
    np.save(repository / "objects.npy", np.zeros(1, dtype=[*fields, ("last", object)]), allow_pickle=True)
    (repository / "renamed.safetensors").write_bytes(pickle.dumps({"a": 1}))
    names = ["pytorch_model.bin", "weights.txt", "harmless.txt", "protocol.txt", "instance.md", "objects.npy"]
    names += ["headerless.txt", "openvino/headerless.bin"]
    findings = {finding.file: finding.group for finding in audit(repository)}
    assert findings == dict.fromkeys([*names, "renamed.safetensors"], "pickle")


def test_texts_that_begin_like_a_pickle_are_no_finding(repository):
    (repository / "vocab.txt").write_text("cat\nsat\nthe\nReduce\n.\n", encoding="utf-8")
    (repository / "notes.md").write_text("(see below)\n", encoding="utf-8")
    (repository / "more.md").write_text("cos\nsin\n(see “below” – it’s there)\nReduce\n.\n", encoding="utf-8")
    assert audit(repository) == []


def test_safetensors_that_begin_with_the_bytes_of_a_pickle_are_no_finding(tmp_path):
    header = b"{" + b" " * (0x0280 - 2) + b"}"
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert audit(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("code.PY", b"import os", "is Python code outside of a .py file, which is not read"),
        ("code.pyw", b"import os", "is Python code outside of a .py file, which is not read"),
        (".hidden/code.py", b"x = 1", "is hidden: a model needs no hidden files"),
        (".cache/code.py", b"x = 1", "is hidden: a model needs no hidden files"),
        (".eval_results/code.py", b"x = 1", "is hidden: a model needs no hidden files"),
        ("openvino/model.bin", b"\x80\x04", "is or may contain a pickle: loading it can run any code"),
        ("other/model.bin", b"\0\0\0\0", "is or may contain a pickle: loading it can run any code"),
        (".git/hooks/post-checkout", b"ls", "git runs the hooks and the programs that it names"),
        ("run.sh", b"ls", "a model needs no file of this kind"),
        ("plain.zip", b"PK\5\6" + bytes(18), "is an archive, not read"),
        ("README.md", b"# hi" + b"PK\5\6" + b"\xff" * 18, "is an archive, not read"),
        ("README.md", b"# hi" + b"PK\5\6" + bytes(8) + b"\1\0" * 4 + bytes(2), "is an archive, not read"),
        ("vocab.txt", b"\x8e" + b"\xff" * 7 + b"\x7f", "is not a text, despite its name"),
        ("vocab.txt", b"\x8e" + (10**11).to_bytes(8, "little"), "is not a text, despite its name"),
        ("numbers.npy", b"\x93NUMPY", "is or may contain a pickle"),
        ("vocab.txt", b"a\0b", "is not a text, despite its name"),
        ("picture.png", b"<svg>", "is not a .png file, despite its name"),
        ("picture.svg", b"<svg><script>alert()</script></svg>", "is a picture that runs scripts in a browser"),
        ("picture.svg", b"<svg onload='alert()'></svg>", "is a picture that runs scripts in a browser"),
        ("model.onnx", b"\x08\x0a\x0a\x08location\x12\x05../ab", "reads '../ab', which is outside of the repository"),
        ("short.safetensors", b"\xff" * 7 + b"\0{", "is not a safetensors file, despite its name"),
        ("cut.safetensors", b"\3" + bytes(7) + b"{}", "is not a safetensors file, despite its name"),
    ],
)
def test_a_file_that_a_checkpoint_does_not_need_is_a_finding(repository, name, content, why):
    (repository / name).parent.mkdir(exist_ok=True, parents=True)
    (repository / name).write_bytes(content)
    (finding,) = audit(repository)
    assert name.startswith(finding.file) and why in finding.why


def test_a_link_to_a_directory_and_a_broken_link_are_findings(repository, tmp_path):
    (repository / "elsewhere").symlink_to(tmp_path)
    (repository / "gone.txt").symlink_to(tmp_path / "gone")
    assert [(finding.file, finding.why) for finding in audit(repository)] == [
        ("elsewhere", "is a link to another directory, which is not read"),
        ("gone.txt", "is neither a file nor a directory"),
    ]


def test_what_a_download_and_a_tokenizer_add_is_no_finding(repository):
    for name in (".gitattributes", "vocab.txt", "LICENSE", ".cache/huggingface/download/config.json.metadata"):
        (repository / name).parent.mkdir(exist_ok=True, parents=True)
        (repository / name).write_text("a\n", encoding="utf-8")
    assert audit(repository) == []


def test_compiled_code_is_a_finding(repository):
    (repository / "fast.so").write_bytes(b"")
    (repository / "fast").write_bytes(b"\x7fELF")
    assert [finding.file for finding in audit(repository)] == ["fast", "fast.so"]
    assert all("compiled code" in finding.why for finding in audit(repository))


def test_the_command_says_that_there_are_no_findings(repository, capsys):
    main(["audit", str(repository)])
    assert capsys.readouterr().out == f"no findings in {repository}\n"


def test_the_command_prints_the_findings_their_number_and_exits_with_2(repository, capsys):
    with (repository / "pooling.py").open("a", encoding="utf-8") as file:
        file.write("import os\nos.system('ls')\n")
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(repository)])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    lines = captured.out.splitlines()
    assert len(lines) == 2 and all(line.startswith("code      pooling.py:") for line in lines)
    assert captured.err.startswith(f"error: 2 finding(s) in {repository}: ")
