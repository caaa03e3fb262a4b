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


# Ways around the audit, each found by attacking it.
@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("from transformers.utils import *", 1, "imports * of transformers.utils: hides which names it imports"),
        (
            "from typing import get_type_hints\nclass A:\n    x: \"__import__('os').system('ls')\"\nget_type_hints(A)",
            3,
            ".system: starts programs",
        ),
        ("class A:\n    x: \"__import__('os').system('ls')\"", 2, ".system: starts programs"),
        (
            "import torch\ntorch.UntypedStorage.from_file('/etc/passwd', False, 10)",
            2,
            "torch.UntypedStorage: reaches memory that files can be mapped to",
        ),
        (
            "import torch\ndef f(t):\n    return t.untyped_storage().from_file('/etc/passwd')",
            3,
            ".from_file: reads files",
        ),
        (
            "from huggingface_hub.utils import httpx as h",
            1,
            "imports huggingface_hub.utils.httpx, which reaches the network",
        ),
        (
            "from transformers.utils.hub import requests as r",
            1,
            "imports transformers.utils.hub.requests, which reaches the network",
        ),
        ("from transformers.utils import hub", 1, "imports transformers.utils.hub, which downloads and runs code"),
        (
            'from transformers import pipeline\npipeline("x")',
            1,
            "imports transformers.pipeline, which loads a model by its name",
        ),
        (
            "from transformers import AutoModel\ndef f(n): return AutoModel.from_pretrained(n)",
            2,
            f"from_pretrained: {OTHER}",
        ),
        (
            "from transformers import AutoModel\nx = list(map(AutoModel.from_pretrained, ['evil']))",
            2,
            f".from_pretrained: {OTHER}",
        ),
        ("from peft import PeftModel", 1, "imports peft.PeftModel, which loads a model by its name"),
        ("import torch\nvars(torch)['os']", 2, "vars: reaches interpreter internals"),
        ("import torch\ntorch.__dict__['os']", 2, "torch.__dict__: reaches interpreter internals"),
        (
            "from functools import reduce\nimport torch\nreduce(getattr, ['os','system'], torch)('ls')",
            3,
            "getattr: hides which attribute it reads",
        ),
        (
            "import torch\nfrom functools import partial\npartial(getattr, torch)('os')",
            3,
            "getattr: hides which attribute it reads",
        ),
        ("import sys", 1, "imports sys, which reaches files and programs"),
        ("def f():\n    yield g.gi_frame.f_back.f_globals\ng = f()", 2, ".f_globals: reaches interpreter internals"),
        (
            "try:\n    1/0\nexcept ZeroDivisionError as e:\n    e.__traceback__.tb_frame.f_builtins",
            4,
            ".f_builtins: reaches interpreter internals",
        ),
        ("import inspect\ninspect.currentframe().f_back", 2, ".f_back: reaches interpreter internals"),
        ("import inspect\ninspect.signature(f, eval_str=True)", 2, "eval_str: runs text as code"),
        ("from functools import singledispatch", 1, "imports functools.singledispatch, which runs text as code"),
        (
            "match f:\n    case object(__globals__=g):\n        g['os']",
            2,
            ".__globals__: reaches interpreter internals",
        ),
        (
            "match f:\n    case object(f_builtins=g):\n        g['open']",
            2,
            ".f_builtins: reaches interpreter internals",
        ),
        ("if False:\n    open = None\nopen('/etc/passwd')", 3, "open: opens files"),
        ("if False:\n    from math import pi as open\nopen('/etc/passwd')", 3, "open: opens files"),
        ("class A:\n    x = open('/etc/passwd')\n    open = 1", 3, "open: opens files"),
        ("def g(open): pass\ndef f(): return open('/x')", 2, "open: opens files"),
        ("import torch\nt = torch\nt.hub.load('a','b')", 3, ".load: reads files or pickles"),
        ("import torch\nx = [torch]\nx[0].hub", 3, ".hub: downloads and runs code"),
        ("from .other import torch\ntorch.hub", 2, ".hub: downloads and runs code"),
        ("print.__self__.open('x')", 1, ".open: opens files"),
        ("f = (lambda: 0).__globals__", 1, ".__globals__: reaches interpreter internals"),
        ('"{0.__globals__[os]}".format(f)', 1, ".format: a model does not need it"),
        ('x = "{0.f_globals}"\nx.format(f)', 2, ".format: a model does not need it"),
        (
            "from transformers import AutoModel\nAutoModel.from_config(c, **{'trust_' + 'remote_code': True})",
            2,
            ".from_config: ** hides its options",
        ),
        ("class A:\n    def save(self): pass\n    def g(self, m): m.numpy().dump('x')", 3, ".dump: writes files"),
        ("class A:\n    def dump(self): pass\n    def g(self, m): m.numpy().dump('x')", 3, ".dump: writes files"),
        (
            "class A:\n    def load_adapter(self): pass\n    def g(self, m): m.load_adapter('x')",
            3,
            ".load_adapter: downloads and runs code",
        ),
        (
            "def f(self, config):\n    config._attn_implementation = 'a' + '/b'",
            2,
            "._attn_implementation is set: chooses kernels",
        ),
        (
            "def f(self, config):\n    config._attn_implementation = 'flash_attention_2'",
            2,
            "._attn_implementation is set: chooses kernels",
        ),
        (
            "def f(self, config):\n    setattr(config, '_attn_implementation', 'a' + '/b')",
            2,
            "._attn_implementation is set: chooses kernels",
        ),
        ("def f(self, name):\n    setattr(config, name, 'x')", 2, "setattr: hides which attribute it sets"),
        ("def f(self, name):\n    return getattr(self, name)('x')", 2, "getattr: hides which attribute it reads"),
        ("X = type('X', (), {'__annot' + 'ations__': {}})", 1, "type: makes a class from values"),
        ("class M(type):\n    pass", 1, "type: makes a class from values"),
        ("t = type\nt('X', (), {})", 1, "type: makes a class from values"),
        # The class of a class is `type`: it makes classes, with annotations whose texts transformers runs.
        ("class A: pass\nX = type(A)('X', (), {})", 2, "type: makes a class from values"),
        ("class A: pass\nX = A.__class__('X', (), {})", 2, ".__class__: makes a class from values"),
        ("class A: pass\nt = type(A)\nt('X', (), {})", 2, "type: makes a class from values"),
        ("from abc import ABCMeta\nX = ABCMeta('X', (), {})", 2, "ABCMeta: makes a class from values"),
        ("import abc\nX = abc.ABCMeta('X', (), {})", 2, "abc.ABCMeta: makes a class from values"),
        (
            "from abc import ABCMeta\nclass M(ABCMeta): pass\nclass A(metaclass=M): pass",
            3,
            "metaclass: makes a class from values",
        ),
        (
            "class abc:\n    ABCMeta = 1\nclass A(metaclass=abc.ABCMeta): pass",
            3,
            "metaclass: makes a class from values",
        ),
        ("from typing import NamedTuple as N\nX = N('X', [('a', 'b'[::-1])])", 2, "N: makes a class from values"),
        ("class A:\n    def __prepare__(name, bases): pass", 2, "__prepare__: makes a type from values"),
        # `wraps` copies annotations to a class, and with its options whatever a text names.
        (
            "from functools import wraps\nclass A: pass\nwraps(f)(A)",
            3,
            "wraps: copies attributes, which it can be told by text",
        ),
        (
            "from functools import wraps\n@wraps(f, updated=['__glo' + 'bals__'])\ndef g(): pass",
            2,
            "wraps: copies attributes, which it can be told by text",
        ),
        (
            "import functools\n@functools.wraps(f)\nclass A: pass",
            2,
            "functools.wraps: copies attributes, which it can be told by text",
        ),
        # Annotations of classes, which transformers runs if they are text.
        ("class A:\n    x: f'__imp'", 2, "f'__imp': an annotation that may be text, run as code"),
        ("class A:\n    x: ')1(cexe'[::-1]", 2, "')1(cexe'[::-1]: an annotation that may be text, run as code"),
        ("p = ')1(cexe'[::-1]\nclass A:\n    x: p", 3, "p: an annotation that may be text, run as code"),
        (
            "p = ')1(cexe'[::-1]\nq = p\nclass A:\n    x: list[q]",
            4,
            "list[q]: an annotation that may be text, run as code",
        ),
        ("def f(p):\n    class A:\n        x: p", 3, "p: an annotation that may be text, run as code"),
        (
            "def f():\n    global p\n    p = 'a'[::-1]\nclass A:\n    x: p",
            5,
            "p: an annotation that may be text, run as code",
        ),
        ("class B:\n    t = 'a'[::-1]\nclass A:\n    x: B.t", 4, "B.t: an annotation that may be text, run as code"),
        ("class A:\n    if True:\n        x: 'a'[::-1]", 3, "'a'[::-1]: an annotation that may be text, run as code"),
        (
            "class Literal: pass\nclass A:\n    x: Literal['f(1)']",
            3,
            "Literal['f(1)']: an annotation that may be text, run as code",
        ),
        ("class A:\n    def __class_getitem__(cls, x): pass", 2, "__class_getitem__: makes a type from values"),
        ("import torch\ntorch.jit.script(f)", 2, "torch.jit.script: a model does not need it"),
        ("import torch.utils.cpp_extension", 1, "imports torch.utils.cpp_extension, which compiles and loads code"),
        ("import torch\ntorch.ops.load_library('x')", 2, "torch.ops: a model does not need it"),
        (
            "import torch.distributed as d\nd.init_process_group('x')",
            2,
            "torch.distributed.init_process_group: a model does not need it",
        ),
        (
            "import torch.distributed as d\nd.broadcast_object_list([])",
            2,
            "torch.distributed.broadcast_object_list: a model does not need it",
        ),
        ("from dataclasses import make_dataclass", 1, "imports dataclasses.make_dataclass, which runs text as code"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", 2, "numpy.load: reads files or pickles"),
        ("import numpy as np\nnp.lib.npyio.DataSource", 2, "numpy.lib: a model does not need it"),
        ("import json\njson.load(f)", 2, "json.load: reads files or pickles"),
        ("import re\nre.copyreg", 2, "re.copyreg: a model does not need it"),
        ("import logging\nlogging.FileHandler('/x')", 2, "logging.FileHandler: a model does not need it"),
        ("import contextlib\ncontextlib.os", 2, "contextlib.os: reaches files and programs"),
        ("import random\nrandom._os.system('x')", 2, "random._os: a model does not need it"),
        ("import warnings\nwarnings.sys.modules", 2, "warnings.sys: reaches files and programs"),
        ("import typing\ntyping.sys", 2, "typing.sys: reaches files and programs"),
        (
            "from transformers.utils import logging\nlogging.os",
            2,
            "transformers.utils.logging.os: reaches files and programs",
        ),
        ("import transformers\ntransformers.utils.hub.httpx", 2, "transformers.utils.hub: downloads and runs code"),
        ("import collections.abc\ncollections.abc.sys", 2, "collections.abc.sys: reaches files and programs"),
        ("from collections import abc\nabc.sys", 2, "collections.abc.sys: reaches files and programs"),
        (
            "class A:\n    loaded_from = {'pretrained_model_name_or_path': 'ev' + 'il/x'}",
            2,
            ".loaded_from is set: chooses what is loaded",
        ),
        (
            "def f(model):\n    model.loaded_from = {'pretrained_model_name_or_path': 'x'}",
            2,
            ".loaded_from is set: chooses what is loaded",
        ),
        (
            "class A:\n    def from_pretrained(c, p):\n        p = 'evil'\n        return super().from_pretrained(p)",
            4,
            f"from_pretrained: {OTHER}",
        ),
        (
            "class A:\n    def from_pretrained(cls, p):\n        return super().from_pretrained('evil')",
            3,
            "loads another repository, 'evil'",
        ),
        (
            "from transformers.utils import cached_file\ndef f(where):\n    return cached_file(where, 'x')",
            3,
            f"cached_file: {OTHER}",
        ),
        (
            "from transformers.utils import cached_file as c\ndef f(model):\n    return c('a', 'x')",
            3,
            f"c: {OTHER}",
        ),
        (
            "from transformers.utils import cached_file\nx = [cached_file]",
            2,
            f"cached_file: {OTHER}",
        ),
        ("# -*- coding: utf-7 -*-\nx = 1", 1, "is written in utf-7, so Python may run another text than you read"),
        ("def f(cls):\n    return cls.__subclasses__()", 2, ".__subclasses__: reaches interpreter internals"),
        ("().__class__.__base__", 1, ".__base__: reaches interpreter internals"),
        ("().__class__.__mro__[1].__subclasses__()", 1, ".__subclasses__: reaches interpreter internals"),
        ("from transformers import Trainer", 1, "imports transformers.Trainer: a model does not need it"),
        (
            "def f(m):\n    m.register('x')\n    m.set_attn_implementation('a')",
            3,
            ".set_attn_implementation: downloads and runs code",
        ),
        ("import torch.nn as nn\nnn.Module.__getattr__", 2, ".__getattr__: hides which attribute it reads"),
        ("x = __builtins__", 1, "__builtins__: reaches interpreter internals"),
        ("x = __loader__", 1, "__loader__: reaches interpreter internals"),
        ("async def f():\n    pass\nf().cr_frame", 3, ".cr_frame: reaches interpreter internals"),
        ("import torch\nclass torch2: pass\ngetattr(torch, 'hub')", 3, "torch.hub: downloads and runs code"),
        ("import torch\ngetattr(torch.nn, 'x' + 'y')", 2, "getattr: hides which attribute it reads"),
        ("import torch\nhasattr(torch, 'x') and torch.hub", 2, "torch.hub: downloads and runs code"),
        ("class A:\n    __match_args__ = ('f_globals',)", 2, "__match_args__: reaches interpreter internals"),
        (
            "class A:\n    def __init_subclass__(cls): cls.__annotations__ = {}",
            2,
            ".__annotations__: reaches interpreter internals",
        ),
        (
            "from typing import Optional\nT = Optional[\"__import__('os')\"]",
            2,
            "__import__: imports without an import statement",
        ),
        ("def f(x: \"exec('1')\"): pass", 1, "exec: runs text as code"),
        ("def f(t): t.set_(t.storage())", 1, ".storage: reaches memory that files can be mapped to"),
        ("def f(x):\n    x.__class__.__init__.__globals__", 2, ".__globals__: reaches interpreter internals"),
        ("import os.path", 1, "imports os.path, which reaches files and programs"),
        ("from math import *", 1, "imports * of math: hides which names it imports"),
        ("from .other import *", 1, "imports * of other: hides which names it imports"),
        ("global_ = globals", 1, "globals: reaches interpreter internals"),
        ("import torch\ntorch.load = 1", 2, "torch.load is set: changes a library"),
        ("import torch\ntorch.nn.Module.from_pretrained", 2, f".from_pretrained: {OTHER}"),
        ("from torch import nn, hub", 1, "imports torch.hub, which downloads and runs code"),
        ("import importlib.util", 1, "imports importlib.util, which reaches files and programs"),
        ("lambda: breakpoint()", 1, "breakpoint: starts a debugger"),
        ("import asyncio", 1, "imports asyncio: a model does not need it"),
        ("f\"{open('/x')}\"", 1, "open: opens files"),
        ("assert eval('1')", 1, "eval: runs text as code"),
        ("@exec\n@input\nclass X: pass", 2, "input: a model does not need it"),
        ("import torch\ntorch.compile(f, backend='x').os", 2, ".os: reaches files and programs"),
        ("def f(tokenizer): tokenizer.save_vocabulary('/x')", 1, ".save_vocabulary: writes files"),
        ("def f(tokenizer): tokenizer.backend_tokenizer.save('/x')", 1, ".save: writes files"),
        ("def f(config): config.to_json_file('/x')", 1, f"to_json_file: {OTHER}"),
        ("def f(config): config.from_json_file('/x')", 1, ".from_json_file: reads files"),
        ("def f(m): m.push_to_hub('x')", 1, ".push_to_hub: uploads files"),
        ("def f(m): m.register_for_auto_class()", 1, ".register_for_auto_class: copies code"),
        ("def f(m): m.generate(x, **{'custom' + '_generate': 'a'})", 1, ".generate: a model does not need it"),
        ("def forward(self, d):\n    A().to_json_file(f'{d}/a.json')", 2, f"to_json_file: {OTHER}"),
        ("def f():\n    save_tokenizer('/etc', t)", 2, f"save_tokenizer: {OTHER}"),
        ("def f(t):\n    save_tokenizer(t, t)", 2, f"save_tokenizer: {OTHER}"),
        ("from .other import save_tokenizer as f", 1, f"f: {OTHER}"),
        ("g = [save_tokenizer]", 1, f"save_tokenizer: {OTHER}"),
        (
            "def save_tokenizer(d):\n    d = x\n    A().to_json_file(f'{d}/a.json')",
            3,
            f"to_json_file: {OTHER}",
        ),
        (
            "def save_tokenizer(d):\n    A().to_json_file(f'{d}/../a.json')",
            2,
            f"to_json_file: {OTHER}",
        ),
        (
            "def save_tokenizer(d):\n    A().to_json_file(f'{d}/{d.name}')",
            2,
            f"to_json_file: {OTHER}",
        ),
        (
            "@f\ndef save_tokenizer(d):\n    pass",
            2,
            f"save_tokenizer: {OTHER}",
        ),
        (
            "def save_tokenizer(d):\n    try:\n        f()\n    except E as d:\n        A().to_json_file(f'{d}/a')",
            5,
            f"to_json_file: {OTHER}",
        ),
    ],
)
def test_code_that_hides_what_it_does_is_a_finding_with_its_line(source, line, why):
    assert why in reasons(source)[line]


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
