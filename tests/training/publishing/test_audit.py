"""The audit finds what a repository could do to a user who trusts it, without running its code."""

import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest
import torch

from csezoo.modeling import METHODS
from csezoo.training.cli.parser import main
from csezoo.training.publishing.audit import Finding, audit, audit_code, audit_json
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


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("import os", 1, "imports os"),
        ("import torch\nimport subprocess as s", 2, "imports subprocess"),
        ("def f():\n    from urllib.request import urlopen", 2, "imports urllib.request.urlopen"),
        ("try:\n    import requests\nexcept ImportError:\n    pass", 2, "imports requests"),
        ("from pickle import loads", 1, "imports pickle.loads"),
        ("import socket, math", 1, "imports socket"),
        ("from transformers import os", 1, "reaches os"),
        ("import torch\ntorch.os.system('ls')", 2, "torch.os: reaches os"),
        ("import torch\ntorch.load('x.bin')", 2, "torch.load: reads pickles"),
        ("import torch as t\nread = t.load", 2, "torch.load: reads pickles"),
        ("from torch import load", 1, "torch.load, which reads pickles"),
        ("import torch\ntorch.hub.load('a/b', 'c')", 2, "torch.hub: downloads and runs code"),
        ("from torch.utils.cpp_extension import load_inline", 1, "compiles and loads code"),
        ("import torch\ntorch.save({}, 'x')", 2, "torch.save: writes files"),
        ("from transformers.dynamic_module_utils import get_class_in_module", 1, "code of other repositories"),
        ("from transformers.utils.hub import hf_hub_download", 1, "downloads files"),
        ("def f(model):\n    model.push_to_hub('mine')", 2, "uploads files"),
        ("def f(vector):\n    vector.numpy().tofile('/tmp/x')", 2, "changes files"),
        ("eval('1')", 1, "eval: runs text as code"),
        ("run = exec", 1, "exec: runs text as code"),
        ("compile('1', '', 'eval')", 1, "compile: turns text into code"),
        ("__import__('os')", 1, "__import__: imports without an import statement"),
        ("open('/etc/passwd')", 1, "open: opens files"),
        ("x = ().__class__.__base__.__subclasses__()", 1, "__subclasses__: reaches interpreter internals"),
        ("x = getattr(f, '__globals__')", 1, "__globals__: reaches interpreter internals"),
        ("class A:\n    def __reduce__(self):\n        pass", 2, "__reduce__: reaches interpreter internals"),
        ("import torch\ngetattr(torch, 'lo' + 'ad')", 2, "getattr of torch: hides which attribute it reads"),
        ("from transformers import AutoModel\nAutoModel.from_pretrained('a/b')", 2, "another repository, 'a/b'"),
        ("def f(m, n):\n    m.from_pretrained(n, trust_remote_code=True)", 2, "trusts other repositories"),
        ("k = {}\nk['trust_remote_code'] = True", 2, "trusts other repositories"),
        ("from .nothere import x", 1, "imports .nothere, which does not exist"),
        ("from ..above import x", 1, "outside its directory"),
        ("from . import above", 1, "a package without a name"),
        ("def f(:", None, "is not valid Python"),
        ("x = '\0'", None, "is not valid Python"),
    ],
)
def test_code_that_modelling_does_not_need_is_a_finding_with_its_line(source, line, why):
    findings = list(audit_code("m.py", source.encode(), {"m.py"}))
    assert any(finding.line == line and why in finding.why for finding in findings), findings
    assert {finding.file for finding in findings} == {"m.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n\nmodel = torch.compile(torch.nn.Linear(2, 2)).eval()",
        "from .other import x\nfrom transformers.utils import cached_file, logging",
        "def f(self, field):\n    return getattr(self, field)",
        '"""import os"""  # eval()',
    ],
)
def test_code_that_modelling_needs_is_no_finding(source):
    assert list(audit_code("m.py", source.encode(), {"m.py", "other.py"})) == []


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
        ("generation_config.json", {"custom_generate": "evil/generate"}, "config", "the code of 'evil/generate'"),
    ],
)
def test_a_configuration_that_loads_code_from_elsewhere_is_a_finding(repository, name, change, group, why):
    path = repository / name
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
    assert finding.why == "trust_remote_code: trusts other repositories"
    assert not list(audit_json("config.json", b'{"trust_remote_code": false}', set()))


def test_a_finding_is_a_line_with_its_place():
    assert str(Finding("code", "m.py", 3, "imports os")) == "code      m.py:3: imports os"
    assert str(Finding("config", "config.json", None, "why")) == "config    config.json: why"


def test_json_that_cannot_be_read_is_a_finding():
    (broken,) = audit_json("config.json", b"{", set())
    (deep,) = audit_json("config.json", b"[" * 100_000, set())
    assert "is not valid JSON" in broken.why and "is not valid JSON" in deep.why


def test_pickles_are_found_by_file_name_and_by_first_bytes(repository):
    torch.save({"a": torch.zeros(1)}, repository / "pytorch_model.bin")
    torch.save({"a": torch.zeros(1)}, repository / "weights.data")
    (repository / "harmless.txt").write_bytes(pickle.dumps({"a": 1}))
    np.save(repository / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(repository / "numbers.npy", np.zeros(3))
    with zipfile.ZipFile(repository / "plain.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    (repository / "renamed.safetensors").write_bytes(pickle.dumps({"a": 1}))
    findings = {finding.file: finding.group for finding in audit(repository)}
    names = ("pytorch_model.bin", "weights.data", "harmless.txt", "objects.npy", "renamed.safetensors")
    assert findings == dict.fromkeys(names, "pickle")


def test_safetensors_that_begin_with_the_bytes_of_a_pickle_are_no_finding(tmp_path):
    header = b"{" + b" " * (0x0280 - 2) + b"}"
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert audit(tmp_path) == []


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
