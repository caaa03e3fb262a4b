"""The audit of code is an allow-list: what modelling code needs passes, and everything else is a finding."""

from pathlib import Path

import pytest

from csezoo.training.publishing.audit_code import audit_sources

OTHER = "may load or save something other than the checkpoint"
STYLES = sorted((Path(__file__).parent / "remote_code").glob("*.py"))


def reasons(source: str) -> dict[int | None, list[str]]:
    """The findings in a file `m.py`, by line. Beside it is `other.py`, which imports torch and defines `x`."""
    found: dict[int | None, list[str]] = {}
    for name, line, why in audit_sources({"m.py": source.encode(), "other.py": b"import torch\nx = 1"}):
        assert name == "m.py"
        found.setdefault(line, []).append(why)
    return found


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("import os", 1, "imports os"),
        ("import torch\nimport subprocess as s", 2, "imports subprocess"),
        ("def f():\n    from urllib.request import urlopen", 2, "imports urllib.request.urlopen"),
        ("try:\n    import requests\nexcept ImportError:\n    pass", 2, "imports requests"),
        ("from pickle import loads", 1, "imports pickle.loads"),
        ("import socket, math", 1, "imports socket"),
        ("from transformers import os", 1, "transformers.os, which reaches files and programs"),
        ("import torch\ntorch.os.system('ls')", 2, "torch.os: reaches files and programs"),
        ("import torch\ntorch.load('x.bin')", 2, "torch.load: reads files or pickles"),
        ("import torch as t\nread = t.load", 2, "torch.load: reads files or pickles"),
        ("from torch import load", 1, "torch.load, which reads files or pickles"),
        ("import torch\ntorch.hub.load('a/b', 'c')", 2, "torch.hub: downloads and runs code"),
        ("from torch.utils.cpp_extension import load_inline", 1, "compiles and loads code"),
        ("import torch\ntorch.save({}, 'x')", 2, "torch.save: writes files"),
        ("from transformers.dynamic_module_utils import get_class_in_module", 1, "downloads and runs code"),
        ("from transformers.utils.hub import hf_hub_download", 1, "downloads files"),
        ("def f(model):\n    model.push_to_hub('mine')", 2, "uploads files"),
        ("def f(vector):\n    vector.numpy().tofile('/tmp/x')", 2, "writes files"),
        ("eval('1')", 1, "eval: runs text as code"),
        ("run = exec", 1, "exec: runs text as code"),
        ("compile('1', '', 'eval')", 1, "compile: turns text into code"),
        ("__import__('os')", 1, "__import__: imports without an import statement"),
        ("open('/etc/passwd')", 1, "open: opens files"),
        ("x = ().__class__.__base__.__subclasses__()", 1, "__subclasses__: reaches interpreter internals"),
        ("x = getattr(f, '__globals__')", 1, "__globals__: reaches interpreter internals"),
        ("class A:\n    def __reduce__(self):\n        pass", 2, "__reduce__: reaches interpreter internals"),
        ("import torch\ngetattr(torch, 'lo' + 'ad')", 2, "getattr: hides which attribute it reads"),
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
    assert any(why in reason for reason in reasons(source).get(line, [])), reasons(source)


def test_an_annotation_that_another_file_computes_is_a_finding():
    files = {"m.py": b"from .other import P as T\nclass A:\n    x: T", "other.py": b"P = 'a'[::-1]"}
    assert list(audit_sources(files)) == [("m.py", 3, "T: an annotation that may be text, run as code")]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n\nmodel = torch.compile(torch.nn.Linear(2, 2)).eval()",
        "from .other import x\nfrom transformers.utils import cached_file, logging",
        "def f(self, field):\n    return getattr(self, 'hidden_size', None), hasattr(self, field)",
        '"""import os"""  # eval()',
        "def f(open, vars):\n    return open + vars",
        "class A:\n    def f(self, x):\n        self.made_up = x\n        return self.made_up",
        "raise ValueError('{}: {!r}'.format(1, 2))",
        "def f(x: type[int], y: 'list[int]') -> type:\n    return type(x)(1)",
        "class A:\n    def from_pretrained(c, p, *a):\n        return super().from_pretrained(p, *a)",
        "class A:\n    def save_pretrained(self, *args):\n        super().save_pretrained(*args)",
        "from transformers import AutoTokenizer\ndef f(m):\n    return AutoTokenizer.from_pretrained(**m.loaded_from)",
        "def save_tokenizer(d, t):\n    path = f'{d}/a.json'\n    A().to_json_file(path)\n    t.save_pretrained(d)",
        "class A:\n    def save_pretrained(self, d, *args):\n        A().to_json_file(f'{d}/{NAME}')",
        "def f(x):\n    return x.clamp_(0).add_(1).unsqueeze(-1)",
    ],
)
def test_code_that_modelling_needs_is_no_finding(source):
    assert reasons(source) == {}


@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.stem)
def test_findings_in_code_in_the_style_of_known_repositories(path):
    """Every line that needs reading is a finding, and few others are. Comments in the files mark both."""
    lines = path.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith(("# finding", "# false alarm"))}
    assert {line for _, line, _ in audit_sources({path.name: path.read_bytes()})} == marked


def test_false_alarms_in_code_in_the_style_of_known_repositories_are_few():
    text = "".join(path.read_text(encoding="utf-8") for path in STYLES)
    assert text.count("# finding") >= 20 and text.count("# false alarm") <= 2
    assert text.count("\n") > 550


def test_code_that_is_nested_too_deeply_to_be_read_is_a_finding():
    (finding,) = reasons("x = " + "a." * 50_000 + "a").values()
    assert "is not valid Python" in finding[0] or "nested too deeply" in finding[0]


def test_code_may_choose_the_attention_of_the_zoo():
    assert reasons("def f(self, encoder):\n    encoder.config._attn_implementation = 'csezoo_packed'") == {}


CHOSEN = "chooses what is loaded"
TRANSFORMERS = "from transformers import AutoModel, BertConfig\n"


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("AutoModel.from_config(c, attn_implementation='a' + 'b')", 2, "attn_implementation: chooses kernels"),
        ("BertConfig.from_dict({'attn_implementation': x})", 2, "attn_implementation: chooses kernels"),
        ("c = BertConfig()\nc.update({'_attn_implementation': x})", 3, "_attn_implementation: chooses kernels"),
        ("BertConfig(auto_map=x)", 2, f"auto_map: {CHOSEN}"),
        ("AutoModel.from_pretrained(BertConfig.from_dict({'loaded_from': x}).loaded_from)", 2, CHOSEN),
        ("from collections import namedtuple\nP = namedtuple('P', 'loaded_from')", 3, CHOSEN),
        ("from collections import namedtuple\nP = namedtuple('P', 'x, loaded_from')", 3, CHOSEN),
        ("BertConfig(loaded_from=x)", 2, f"loaded_from: {CHOSEN}"),
        ("class A:\n    def loaded_from(self):\n        return x", 3, CHOSEN),
        ("class A:\n    loaded_from, y = x, 1", 3, CHOSEN),
        ("class A:\n    loaded_from: str = 'x'", 3, CHOSEN),
    ],
)
def test_a_setting_that_decides_what_is_loaded_is_a_finding_however_it_is_written(source, line, why):
    assert any(why in reason for reason in reasons(TRANSFORMERS + source).get(line, [])), reasons(source)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("AutoModel.from_pretrained(m.loaded_from)", 2),
        ("def f():\n    return AutoModel.from_pretrained(m.loaded_from)", 3),
        ("def f(m):\n    return AutoModel.from_pretrained(g(m).loaded_from)", 3),
        ("def f(m):\n    m = g()\n    return AutoModel.from_pretrained(m.loaded_from)", 4),
        ("def f(m):\n    from .other import m\n    return AutoModel.from_pretrained(m.loaded_from)", 4),
        ("def f(m):\n    return (lambda m: AutoModel.from_pretrained(m.loaded_from))(x)", 3),
    ],
)
def test_only_a_model_that_a_function_is_given_says_where_it_was_loaded_from(source, line):
    assert f"from_pretrained: {OTHER}" in reasons(TRANSFORMERS + source)[line]


def test_a_model_may_load_more_from_where_it_was_loaded_from_which_is_nowhere_at_first():
    method = "class A:\n    loaded_from: dict | None = None\n    def f(self):\n        "
    assert reasons(f"{TRANSFORMERS}{method}return AutoModel.from_pretrained(**self.loaded_from)") == {}
