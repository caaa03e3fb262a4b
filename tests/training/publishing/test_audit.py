"""The audit accepts a repository whose code is csezoo's, byte for byte, and names everything else that could run."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from csezoo.training.cli.parser import main
from csezoo.training.files import read_json, write_json
from csezoo.training.publishing.audit import RELEASES, Finding, add_release, audit, installed_code, known_code
from tests.interpreters import as_a_user
from tests.repositories import tiny_repository

AUDIT_EACH = """
import json, sys
from pathlib import Path
from csezoo.training.publishing.audit import audit
print(json.dumps([audit(Path(name)) for name in sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return tiny_repository(tmp_path_factory.mktemp("published") / "tiny")


@pytest.fixture
def repository(published, tmp_path):
    return shutil.copytree(published, tmp_path / "repository")


def change_json(path: Path, change: dict) -> None:
    before = read_json(path) if path.is_file() else {}
    write_json(path, before | change)


@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_one_changed_byte_of_our_code_is_a_finding(repository, place):
    for file in sorted(repository.glob("*.py")):
        before = file.read_bytes()
        changed = bytearray(before)
        changed[int(place * (len(before) - 1))] ^= 1
        file.write_bytes(changed)
        assert audit(repository) == [Finding(file.name, "is not code of a csezoo release: read it")]
        file.write_bytes(before)
    assert audit(repository) == []


def test_our_code_under_another_name_or_in_a_folder_is_a_finding(repository):
    shutil.copy(repository / "pooling_csezoo.py", repository / "encoding_csezoo.py")
    shutil.copytree(repository, repository.parent / "copy")
    shutil.move(repository.parent / "copy", repository / "folder")
    findings = {finding.file for finding in audit(repository) if "csezoo release" in finding.why}
    assert findings == {"encoding_csezoo.py", *(f"folder/{file.name}" for file in repository.glob("*.py"))}


def test_code_of_an_earlier_release_passes(repository, tmp_path):
    releases = tmp_path / "releases.json"
    releases.write_text("{}", encoding="utf-8")
    older = repository / "pooling_csezoo.py"
    now = older.read_bytes()
    older.write_bytes(now + b"# as it was\n")
    (finding,) = audit(repository, releases)
    assert finding.file == "pooling_csezoo.py"
    checksums = {"pooling_csezoo.py": sha256(older)}
    write_json(releases, {"0.0.1": checksums, "0.0.2": {"pooling_csezoo.py": "0"}})
    assert audit(repository, releases) == []
    shutil.copy(older, repository / "encoding_csezoo.py")  # it was never code of that name
    assert [finding.file for finding in audit(repository, releases)] == ["encoding_csezoo.py"]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_release_adds_the_checksums_of_the_installed_code(published, tmp_path):
    releases = Path(shutil.copy(RELEASES, tmp_path))
    add_release("9.9.9", releases)
    written = read_json(releases)
    assert written.pop("9.9.9") == installed_code()
    assert written == read_json(RELEASES)
    name = "modeling_csezoo.py"
    assert installed_code()[name] == sha256(published / name) and sha256(published / name) in known_code()[name]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modeling_other.py", b"x = 1\n"),
        ("setup.py", b""),
        ("code.PY", b"import os"),
        ("code.pyw", b"import os"),
        ("fast.so", b"\x7fELF"),
        ("run.sh", b"ls"),
        ("chat_template.jinja", b"{{ 1 }}"),
        ("pytorch_model.bin", b"\x80\x02N."),
        ("2_Dense/pytorch_model.bin", b"\x80\x02N."),
        ("openvino/pytorch_model.bin", b"\x80\x02N."),
        ("onnx/custom.onnx", b"\x08"),
        ("objects.npy", b"\x93NUMPY"),
        ("training_args.pt", b"\x80\x02N."),
        ("notes.pkl", b"\x80\x02N."),
        ("plain.zip", b"PK\5\6" + bytes(18)),
        ("Dockerfile", b"RUN ls"),
    ],
)
def test_a_file_that_is_not_ours_and_could_run_is_a_finding(repository, name, content):
    (repository / name).parent.mkdir(exist_ok=True)
    (repository / name).write_bytes(content)
    (finding,) = audit(repository)
    assert finding.file == name
    python = name.endswith(".py")
    assert ("is not code of a csezoo release" if python else "it may contain code or a pickle") in finding.why


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("config.json", {"auto_map": {"AutoModel": "evil/code--m.Model"}}, "'evil/code--m.Model' is not a class of"),
        ("config.json", {"auto_map": {"AutoModel": "other.Model"}}, "'other.Model' is not a class of csezoo"),
        ("config.json", {"auto_map": {"AutoModel": "e/c--modeling_csezoo.CsezooModel"}}, "is not a class of csezoo"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "e/c--t.T"]}}, "auto_map: 'e/c--t.T'"),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "e/c--p.P"}}, "auto_map: 'e/c--p.P'"),
        ("config.json", {"custom_pipelines": {"x": {"impl": "e/c--p.P"}}}, "impl: 'e/c--p.P'"),
        ("config.json", {"_attn_implementation_internal": "evil/kernel"}, "kernels of 'evil/kernel'"),
        ("config.json", {"backbone_config": {"attn_implementation": {"": "e/k:f"}}}, "kernels of 'e/k:f'"),
        ("config.json", {"experts_implementation": "e/k"}, "kernels of 'e/k'"),
        ("config.json", {"use_kernels": True}, "use_kernels: runs code from elsewhere (True)"),
        ("generation_config.json", {"custom_generate": "evil/generate"}, "runs code from elsewhere ('evil/generate')"),
        ("sentence_bert_config.json", {"model_args": [{"trust_remote_code": True}]}, "trust_remote_code: runs code"),
        ("sentence_bert_config.json", {"model_args": {"code_revision": "abc"}}, "code_revision: loads from elsewhere"),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "e/c"}, "name_or_path: loads from elsewhere"),
        ("sentence_bert_config.json", {"config_args": {"x": 1}}, "config_args: is an option of the loader"),
        ("adapter_config.json", {"base_model_name_or_path": "evil/model"}, "loads the model that it names"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "activation_function: imports 'os.system'"),
        ("router_config.json", {"types": {"query": "mine.Module"}}, "types: imports 'mine.Module'"),
        ("tokenizer_config.json", {"tokenizer_class": "mine.Tokenizer"}, "tokenizer_class: imports 'mine.Tokenizer'"),
        ("model.safetensors.index.json", {"weight_map": {"a": "../model.safetensors"}}, "'../model.safetensors' is"),
        ("model.safetensors.index.json", {"weight_map": {"a": "/m.safetensors"}}, "is no safetensors file of the"),
        ("model.safetensors.index.json", {"weight_map": {"a": "model.bin"}}, "'model.bin' is no safetensors file"),
        ("config.json", {"transformers_weights": "weights.pkl"}, "'weights.pkl' is no safetensors file"),
    ],
)
def test_a_configuration_that_loads_something_else_is_a_finding(repository, name, change, why):
    (repository / name).parent.mkdir(exist_ok=True)
    change_json(repository / name, change)
    (finding,) = audit(repository)
    assert finding.file == name and why in finding.why


def test_a_part_of_a_repository_is_a_finding(repository):
    """Without the Hub, what is in the cache is audited: here the files that a first, refused load has left."""
    (repository / "modeling_csezoo.py").unlink()
    assert [finding.file for finding in audit(repository)] == ["config.json"]


@pytest.mark.parametrize(
    ("module", "finding"),
    [
        ({"type": "sentence_transformers.models.Pooling"}, None),
        ({"type": "sentence_transformers.sentence_transformer.modules.dense.Dense"}, None),
        ({"type": "mine.Pooling"}, "type: imports 'mine.Pooling'"),
        ({"type": "e/c--m.Pooling"}, "type: imports 'e/c--m.Pooling'"),
        # That module imports torch: `torch.load` would read the folder's file, a pickle.
        ({"type": "sentence_transformers.models.Dense.torch"}, "imports 'sentence_transformers.models.Dense.torch'"),
        ({"path": "../elsewhere"}, "path: '../elsewhere' is outside of the repository"),
    ],
)
def test_a_module_that_is_not_one_of_sentence_transformers_is_a_finding(repository, module, finding):
    file = repository / "modules.json"
    write_json(file, [*read_json(file, list), module])
    found = audit(repository)
    assert len(found) == (finding is not None)
    assert all(one.file == "modules.json" and finding in one.why for one in found)


@pytest.mark.parametrize("value", [True, "false", 1, 0, None, [], {"inner": 0}])
def test_only_a_plain_false_trusts_no_remote_code(repository, value):
    change_json(repository / "config.json", {"trust_remote_code": value})
    (finding,) = audit(repository)
    assert finding.why == f"trust_remote_code: runs code from elsewhere ({value!r})"
    change_json(repository / "config.json", {"trust_remote_code": False})
    assert audit(repository) == []


def test_json_that_cannot_be_read_is_a_finding(repository):
    (repository / "broken.json").write_bytes(b"{")
    (repository / "deep.json").write_bytes(b"[" * 100_000)
    (repository / "latin.json").write_bytes(b'{"a": "\xe9"}')
    findings = audit(repository)
    assert [finding.file for finding in findings] == ["broken.json", "deep.json", "latin.json"]
    assert all("cannot be read" in finding.why for finding in findings)


def test_links_to_directories_broken_links_and_hidden_files_are_findings(repository, tmp_path):
    (repository / "elsewhere").symlink_to(tmp_path)
    (repository / "gone.txt").symlink_to(tmp_path / "gone")
    (repository / ".hidden").mkdir()
    (repository / ".hidden" / "notes.txt").write_text("a", encoding="utf-8")
    (repository / ".git" / "hooks").mkdir(parents=True)
    (repository / ".git" / "hooks" / "post-checkout").write_text("ls", encoding="utf-8")
    os.mkfifo(repository / "pipe.json")
    assert [(finding.file, finding.why.split(":")[0]) for finding in audit(repository)] == [
        (".git", "git runs the hooks that it names"),
        (".hidden/notes.txt", "is hidden"),
        ("elsewhere", "is a link to another directory"),
        ("gone.txt", "is neither a file nor a directory"),
        ("pipe.json", "is neither a file nor a directory"),
    ]


def test_a_picture_that_runs_scripts_is_a_finding(repository):
    for name, content in (("a.svg", "<svg><script>alert()</script></svg>"), ("b.svg", "<svg onload='alert()'></svg>")):
        (repository / name).write_text(content, encoding="utf-8")
    assert [finding.file for finding in audit(repository)] == ["a.svg", "b.svg"]


def test_what_cannot_be_read_is_a_finding(published, tmp_path):
    """Of a complete repository: a file, a folder, a folder whose files have names and no content, everything."""
    closed = {"file": "config.json", "folder": "1_Pooling", "names": "1_Pooling", "everything": "."}
    for case, name in closed.items():
        shutil.copytree(published, tmp_path / case)
        (tmp_path / case / name).chmod(0o444 if case == "names" else 0)
    shutil.copytree(published, tmp_path / "listed").chmod(0o444)
    try:
        user = as_a_user()
        names = [str(tmp_path / case) for case in (*closed, "listed")]
        command = [*user, sys.executable, "-W", "ignore", "-c", AUDIT_EACH, *names]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    finally:
        for path in (*(tmp_path / case / name for case, name in closed.items()), tmp_path / "listed"):
            path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    file, folder, names, everything, listed = json.loads(done.stdout)
    assert [name for name, _ in file] == ["config.json"] and "Permission denied" in file[0][1]
    assert [name for name, _ in folder] == ["1_Pooling"] and "Permission denied" in folder[0][1]
    assert [name for name, _ in names] == ["1_Pooling/config.json"] and "Permission denied" in names[0][1]
    assert everything == [[".", "is empty or cannot be read"]]
    assert {path.name for path in (tmp_path / "listed").iterdir()} == {name for name, _ in listed}


def test_an_empty_directory_is_a_finding(tmp_path):
    assert audit(tmp_path) == [Finding(".", "is empty or cannot be read")]


def test_what_a_download_a_run_and_a_tokenizer_add_is_no_finding(repository):
    names = [".gitattributes", "vocab.txt", "LICENSE", ".cache/huggingface/download/config.json.metadata"]
    names += ["recipe.yaml", "training_curves.png", ".eval_results/STS12.yaml", "onnx/model_int8.onnx"]
    for name in names:
        (repository / name).parent.mkdir(exist_ok=True, parents=True)
        (repository / name).write_text("a\n", encoding="utf-8")
    # Words, not keys.
    (repository / "vocab.json").write_text('{"auto_map": "a/b--c.D", "trust_remote_code": 5}', encoding="utf-8")
    assert audit(repository) == []


def test_the_command_prints_the_findings_their_number_and_exits_with_2(repository, capsys):
    main(["audit", str(repository)])
    assert capsys.readouterr().out == f"no findings in {repository}\n"
    (repository / "pooling_csezoo.py").write_text("import os\n", encoding="utf-8")
    (repository / "model.pt").touch()
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(repository)])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out.splitlines() == [
        "model.pt: is no file that csezoo writes: it may contain code or a pickle",
        "pooling_csezoo.py: is not code of a csezoo release: read it",
    ]
    assert captured.err.startswith(f"error: 2 finding(s) in {repository}: ")
