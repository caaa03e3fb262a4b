"""Audit a repository with remote code: find what its files could do to a user who trusts it, without running them."""

from __future__ import annotations

import ast
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import one_line
from ..hub import local_directory

# The modules that modelling code needs. An import of any other is a finding.
LIBRARIES = {"torch", "transformers", "peft"}
STANDARD = {"__future__", "abc", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "inspect"}
STANDARD |= {"itertools", "math", "random", "typing", "warnings", "zlib"}
# Modules that the allowed ones import themselves. Reaching them that way (`torch.os`) is a finding.
REACHED = {"builtins", "ctypes", "importlib", "io", "os", "pathlib", "pickle", "shutil", "socket", "subprocess", "sys"}
LIBRARY_PARTS = {
    "torch.load": "reads pickles",
    "torch.save": "writes files",
    "torch.jit.load": "reads code from files",
    "torch.package": "reads code from files",
    "torch.serialization": "reads pickles",
    "torch.hub": "downloads and runs code",
    "torch.utils.model_zoo": "downloads files",
    "torch.utils.cpp_extension": "compiles and loads code",
    "torch.ops.load_library": "loads compiled code",
    "torch.classes.load_library": "loads compiled code",
    "torch.from_file": "reads files",
    "transformers.dynamic_module_utils": "loads code of other repositories",
}
BUILTINS = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "compile": "turns text into code",
    "__import__": "imports without an import statement",
    "open": "opens files",
    "breakpoint": "starts a debugger",
    "globals": "reaches interpreter internals",
}
INSIDES = {"__builtins__", "__globals__", "__subclasses__", "__code__", "__loader__", "__reduce__", "__reduce_ex__"}
INSIDES |= {"__import__", "__getattribute__"}
# Functions and methods that are findings under any module or object.
FUNCTIONS = {
    **dict.fromkeys(("read_text", "read_bytes", "fromfile", "memmap"), "reads files"),
    **dict.fromkeys(("write_text", "write_bytes", "tofile", "unlink", "rmtree"), "changes files"),
    **dict.fromkeys(
        ("hf_hub_download", "snapshot_download", "load_state_dict_from_url", "urlopen"), "downloads files"
    ),
    **dict.fromkeys(("push_to_hub", "upload_file", "upload_folder"), "uploads files"),
    **dict.fromkeys(("exec_module", "load_module", "import_module"), "imports without an import statement"),
    **dict.fromkeys(("system", "popen", "Popen"), "starts programs"),
}
PICKLES = {".bin", ".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth"}
COMPILED = {".dll", ".dylib", ".exe", ".pyc", ".pyd", ".so"}
VOCABULARIES = {"tokenizer.json", "vocab.json"}  # their keys are tokens


class Finding(NamedTuple):
    """A line or a file to read before trusting a repository."""

    group: str
    file: str
    line: int | None
    why: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{self.group:<8}  {place}: {self.why}"


def audit_repository(repository: str, revision: str | None = None) -> tuple[str, list[Finding]]:
    """Audit a repository. From the Hub, everything but the safetensors files is downloaded.

    Args:
        repository: directory or Hub id.
        revision: branch, tag or commit on the Hub.

    Returns:
        What was audited (the directory, or the repository at its commit) and the findings.

    Example:
        `audit_repository("somebody/their-model", "main")`
    """
    directory = local_directory(repository, revision, without="*.safetensors")
    read = repository if Path(repository).is_dir() else f"{repository} at {directory.name}"
    return read, audit(directory)


def audit(directory: Path) -> list[Finding]:
    """Return the findings in the code, the configurations and the other files of a directory."""
    files = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*")) if path.is_file()}
    findings: list[Finding] = []
    for name, path in files.items():
        if name.startswith((".git/", ".cache/")):
            continue
        if path.suffix == ".py":
            findings += audit_code(name, path.read_bytes(), set(files))
        elif path.suffix == ".json" and path.name not in VOCABULARIES:
            findings += audit_json(name, path.read_bytes(), set(files))
        else:
            findings += audit_bytes(name, path)
    return sorted(findings, key=lambda finding: (finding.group, finding.file, finding.line or 0))


def audit_code(name: str, source: bytes, files: set[str]) -> Iterator[Finding]:
    """Find imports, calls and names in a Python file that modelling code does not need.

    Args:
        name: the file's path inside the repository.
        source: the file's content.
        files: all paths in the repository, to check relative imports.

    Example:
        >>> [finding.why for finding in audit_code("a.py", b"from os import system", {"a.py"})]
        ['imports os.system']
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        yield Finding("code", name, None, f"is not valid Python ({one_line(error)})")
        return
    imported: dict[str, str] = {}  # each imported name, with its full dotted name
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                imported[local] = alias.name if alias.asname else local
                modules.add(local)
                yield from _import(name, node, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield from _import(name, node, f"{node.module}.{alias.name}")
        elif isinstance(node, ast.ImportFrom):
            yield from _relative_import(name, node, files)
    for node in ast.walk(tree):
        for why in _reasons(node, imported, modules):  # reasons exist for nodes with a line number only
            yield Finding("code", name, node.lineno, why)  # type: ignore[attr-defined]


def _import(name: str, node: ast.stmt, dotted: str) -> Iterator[Finding]:
    parts = dotted.split(".")
    if parts[0] not in LIBRARIES | STANDARD:
        yield Finding("code", name, node.lineno, f"imports {dotted}")
        return
    prefixes = [".".join(parts[:length]) for length in range(2, len(parts) + 1)]
    reasons = [LIBRARY_PARTS[prefix] for prefix in prefixes if prefix in LIBRARY_PARTS]
    reasons += [f"reaches {part}" for part in parts if part in REACHED]
    reasons += [FUNCTIONS[part] for part in parts if part in FUNCTIONS]
    if reasons:
        yield Finding("code", name, node.lineno, f"imports {dotted}, which {' and '.join(reasons)}")


def _relative_import(name: str, node: ast.ImportFrom, files: set[str]) -> Iterator[Finding]:
    if node.level > 1 or not node.module:
        yield Finding("code", name, node.lineno, "imports from outside its directory, or a package without a name")
    elif Path(name).with_name(f"{node.module}.py").as_posix() not in files:
        yield Finding("code", name, node.lineno, f"imports .{node.module}, which does not exist")


def _reasons(node: ast.AST, imported: dict[str, str], modules: set[str]) -> Iterator[str]:
    """Yield the reasons why a node is a finding."""
    dotted = _dotted(node, imported)
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name in BUILTINS and name not in imported:
            yield f"{name}: {BUILTINS[name]}"
        case ast.Attribute(attr=name) if name in FUNCTIONS:
            yield f".{name}: {FUNCTIONS[name]}"
        case ast.Attribute() if dotted in LIBRARY_PARTS:
            yield f"{dotted}: {LIBRARY_PARTS[dotted]}"
        case ast.Attribute(attr=name) if dotted and name in REACHED:
            yield f"{dotted}: reaches {name}"
        case ast.Constant(value="trust_remote_code"):
            yield "trust_remote_code: trusts other repositories"
        case ast.Call():
            yield from _call_reasons(node, modules)
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.Constant(value=str(name)):
            if name in INSIDES:
                yield f"{name}: reaches interpreter internals"


def _call_reasons(node: ast.Call, modules: set[str]) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Name("getattr"), args=[ast.Name(module), *_]) if module in modules:
            yield f"getattr of {module}: hides which attribute it reads"
        case ast.Call(func=ast.Attribute(attr="from_pretrained"), args=[ast.Constant(other), *_]):
            yield f"loads another repository, {other!r}"
    if any(keyword.arg == "trust_remote_code" for keyword in node.keywords):
        yield "trust_remote_code: trusts other repositories"


def _dotted(node: ast.AST, imported: dict[str, str]) -> str | None:
    """Return the full name of an attribute of an imported module, such as `torch.nn.Linear`."""
    if isinstance(node, ast.Attribute):
        root = _dotted(node.value, imported)
        return root and f"{root}.{node.attr}"
    return imported.get(node.id) if isinstance(node, ast.Name) else None


def audit_json(name: str, content: bytes, files: set[str]) -> Iterator[Finding]:
    """Find keys of a configuration that load code from elsewhere, or load code without the user's consent.

    Example:
        >>> [finding.why for finding in audit_json("config.json", b'{"trust_remote_code": true}', set())]
        ['trust_remote_code: trusts other repositories']
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        yield Finding("config", name, None, f"is not valid JSON ({one_line(error)})")
        return
    if Path(name).name == "modules.json" and isinstance(value, list):
        types = [str(module.get("type")) for module in value if isinstance(module, dict)]
        others = [name for name in types if not name.startswith("sentence_transformers.")]
        yield from _references(name, "type", others, files)
    for key, inner in _items(value):
        if key == "auto_map" or key == "impl":
            yield from _references(name, key, _strings(inner), files)
        elif key.endswith("attn_implementation") or key.endswith("attn_implementation_internal"):
            for kernel in (text for text in _strings(inner) if "/" in text):
                yield Finding("config", name, None, f"{key}: downloads and runs the kernels of {kernel!r}")
        elif key == "trust_remote_code" and inner is not False:
            yield Finding("config", name, None, "trust_remote_code: trusts other repositories")
        elif key == "custom_generate":
            yield Finding("config", name, None, f"custom_generate: generates with the code of {inner!r}")


def _references(name: str, key: str, references: list[str], files: set[str]) -> Iterator[Finding]:
    """Find classes that a configuration names in another repository, or in a file that does not exist."""
    for reference in references:
        module = reference.rpartition(".")[0].replace(".", "/")
        if "--" in reference:
            yield Finding("auto_map", name, None, f"{key}: {reference!r} is code of another repository")
        elif f"{module}.py" not in files:
            yield Finding("auto_map", name, None, f"{key}: {reference!r} is in no file of the repository")


def _items(value: object) -> Iterator[tuple[str, object]]:
    """Yield every key of a JSON value, at any depth, with its value."""
    for inner in _values(value):
        if isinstance(inner, dict):
            yield from inner.items()


def _strings(value: object) -> list[str]:
    return [inner for inner in _values(value) if isinstance(inner, str)]


def _values(value: object) -> Iterator[object]:
    """Yield a JSON value and all values in it, at any depth."""
    todo = [value]
    while todo:
        yield (inner := todo.pop())
        todo += inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()


def audit_bytes(name: str, path: Path) -> Iterator[Finding]:
    """Find pickles and compiled code, by file name and by first bytes."""
    with path.open("rb") as file:
        start = file.read(256)
    if path.suffix == ".safetensors":
        if start[8:9] != b"{":  # the first 8 bytes are the length of the JSON header
            yield Finding("pickle", name, None, "is not a safetensors file, despite its name")
    elif path.suffix in PICKLES or (start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        yield Finding("pickle", name, None, "is a pickle: loading it can run any code")
    elif start.startswith(b"\x93NUMPY") and b"O'" in start:
        yield Finding("pickle", name, None, "is an array of pickled objects: loading it can run any code")
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if inside := [member for member in archive.namelist() if Path(member).suffix in PICKLES]:
                yield Finding("pickle", name, None, f"contains pickles ({inside[0]}): loading them can run any code")
    elif path.suffix in COMPILED or start.startswith((b"\x7fELF", b"MZ")):
        yield Finding("code", name, None, "is compiled code, which cannot be reviewed")
