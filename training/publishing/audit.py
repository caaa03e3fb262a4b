"""Audit a repository with remote code: find what its files could do to a user who trusts it, without running them.

The audit is an allow-list: what a checkpoint needs passes, and everything else is a finding.
"""

from __future__ import annotations

import json
import mmap
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import one_line
from ..hub import is_inside, local_directory
from .audit_allowed import OPTIONS
from .audit_code import REPOSITORY, audit_sources

TEXTS = {".cff", ".json", ".md", ".svg", ".txt", ".yaml", ".yml"}
NAMES = {"LICENSE", "NOTICE", ".gitattributes", ".gitignore"}  # of texts without a suffix
# Other files that a checkpoint may have, by suffix, with their first bytes.
BINARIES = {
    ".jpg": b"\xff\xd8",
    ".model": b"\n",  # SentencePiece's
    ".onnx": b"\x08",
    ".png": b"\x89PNG",
}
# What `hf download --local-dir` writes beside the files.
DOWNLOADED = re.compile(r"\.cache/huggingface/(\.gitignore|CACHEDIR\.TAG|download/.*\.(metadata|lock))")
# Results for the Hub's leaderboards, which `csezoo publish` writes.
EVAL_RESULTS = re.compile(r"\.eval_results/[^/]+\.yaml")
# A model for OpenVINO: a graph, and a file of numbers without a header.
OPENVINO = re.compile(r"openvino/[^/]+\.(xml|bin)")
PICKLES = {".bin", ".ckpt", ".dill", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth"}
COMPILED = {".dll", ".dylib", ".exe", ".pyc", ".pyd", ".so"}
PYTHON = {".ipynb", ".py", ".pyi", ".pyw", ".pyx", ".pyz"}
# Opcodes of a pickle that import something, those that call something, and those that make its arguments.
IMPORTS = {"GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"}
CALLS = {"REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD"}
ARGUMENTS = {"MARK", "TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT"}
# What zipfile raises for a damaged archive. NotImplementedError: its version is not known.
ARCHIVE_ERRORS = (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, OverflowError, MemoryError)
SCRIPT = re.compile(rb"<script|<foreignObject|javascript:|\son\w+\s*=", re.IGNORECASE)
EXTERNAL_DATA = re.compile(rb"\x0a\x08location\x12(.)", re.DOTALL)  # in ONNX: a key, and the length of its value
# JSON files that only name things: tokens, texts, results, and what was converted.
VALUES = {"tokenizer.json", "vocab.json", "fingerprint.json", "results.json", "conversion.json"}
# Keys whose value is the path of a class that is imported, and the classes that a checkpoint needs.
CLASSES = {"type", "types", "activation_function", "tokenizer_class"}
KNOWN_CLASS = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?[A-Z]\w*|sentence_transformers\.(\w+\.)?(models|modules)\.[\w.]+"
)
# Keys whose value may look like the name of a repository.
LABELS = {"_name_or_path", "name_or_path", "content", "path"}


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
    paths = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*"))}
    paths = {name: path for name, path in paths.items() if not name.startswith(".git/")}
    files = {name: path for name, path in paths.items() if path.is_file()}
    findings = [Finding("file", name, None, why) for name, path in paths.items() if (why := _unread(name, path))]
    sources = {name: path.read_bytes() for name, path in files.items() if path.suffix == ".py"}
    findings += [Finding("code", *finding) for finding in audit_sources(sources)]
    for name, path in files.items():
        if path.suffix == ".json":
            findings += audit_json(name, path.read_bytes(), set(files))
        findings += audit_bytes(name, path)
    return sorted(findings, key=lambda finding: (finding.group, finding.file, finding.line or 0))


def _unread(name: str, path: Path) -> str | None:
    """Return why a file or directory is a finding by its place alone; `None` if it is not."""
    if name == ".git":
        return "git runs the hooks and the programs that it names: audit a download of the repository instead"
    if path.is_dir():
        return "is a link to another directory, which is not read" if path.is_symlink() else None
    if not path.is_file():
        return "is neither a file nor a directory"
    if any(part.startswith(".") for part in name.split("/")) and path.name not in NAMES:
        known = DOWNLOADED.fullmatch(name) or EVAL_RESULTS.fullmatch(name)
        return None if known else "is hidden: a model needs no hidden files"
    return None


def audit_json(name: str, content: bytes, files: set[str]) -> Iterator[Finding]:
    """Find keys of a configuration that load code from elsewhere, or load code without the user's consent.

    Example:
        >>> [finding.why for finding in audit_json("config.json", b'{"trust_remote_code": true}', set())]
        ['trust_remote_code: trusts other repositories (True)']
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        yield Finding("config", name, None, f"is not valid JSON ({one_line(error)})")
        return
    if Path(name).name == "adapter_config.json":
        yield Finding("config", name, None, "loads the model that it names, with its code, instead of this one")
    todo = [value] if Path(name).name not in VALUES else []
    for inner in todo:
        if isinstance(inner, list):
            todo += inner
        for key, part in inner.items() if isinstance(inner, dict) else ():
            findings = list(_key(name, key, part, files))
            yield from findings
            todo += [] if findings else [part]


def _key(name: str, key: str, value: object, files: set[str]) -> Iterator[Finding]:
    """Find what is wrong with one key of a configuration."""
    if key in ("auto_map", "impl"):
        yield from _references(name, key, _strings(value), files)
    elif key in CLASSES:
        paths = [text for text in _strings(value) if "." in text and not KNOWN_CLASS.fullmatch(text)]
        yield from _references(name, key, paths, files)
    elif key.endswith(("attn_implementation", "attn_implementation_internal", "experts_implementation")):
        for kernel in (text for text in _strings(value) if "/" in text):
            yield Finding("config", name, None, f"{key}: downloads and runs the kernels of {kernel!r}")
    elif key in OPTIONS and value is not False:
        yield Finding("config", name, None, f"{key}: {OPTIONS[key]} ({value!r})")
    elif key in ("weight_map", "transformers_weights", "path"):
        for path in _strings(value):
            if not is_inside(path):
                yield Finding("config", name, None, f"{key}: {path!r} is outside of the repository")
            elif key != "path" and not path.endswith(".safetensors"):
                yield Finding("pickle", name, None, f"{key}: {path!r} is not a safetensors file")
    elif isinstance(value, str) and ".." in value.replace("\\", "/").split("/") and key not in LABELS:
        yield Finding("config", name, None, f"{key}: {value!r} is outside of the repository")
    elif isinstance(value, str) and REPOSITORY.fullmatch(value) and value not in files:
        if key not in LABELS and not key.isdigit():
            yield Finding("config", name, None, f"{key}: {value!r} may be the name of another repository")


def _references(name: str, key: str, references: list[str], files: set[str]) -> Iterator[Finding]:
    """Find classes that a configuration names in another repository, or in a file that does not exist."""
    for reference in references:
        module = reference.rpartition(".")[0].replace(".", "/")
        if "--" in reference:
            yield Finding("auto_map", name, None, f"{key}: {reference!r} is code of another repository")
        elif f"{module}.py" not in files:
            yield Finding("auto_map", name, None, f"{key}: {reference!r} is in no file of the repository")


def _strings(value: object) -> list[str]:
    """Return all texts in a JSON value, at any depth."""
    todo = [value]
    for inner in todo:
        todo += inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    return [inner for inner in todo if isinstance(inner, str)]


def audit_bytes(name: str, path: Path) -> Iterator[Finding]:
    """Find pickles, compiled code, and files of kinds that a checkpoint does not need.

    The kind is the suffix; the content must be of that kind.
    """
    with path.open("rb") as file:
        start = file.read(256)
        file.seek(0, 2)
        size = file.tell()
    suffix = path.suffix.lower()
    if (members := _members(path)) is not None:
        pickles = [member for member in members if Path(member).suffix.lower() in PICKLES]
        what = (
            f"is a pickle in an archive ({pickles[0]}): loading it can run any code"
            if pickles
            else "is an archive, not read"
        )
        yield Finding("pickle" if pickles else "file", name, None, what)
    elif path.suffix == ".safetensors":
        header = int.from_bytes(start[:8], "little")
        if start[8:9] != b"{" or header > size - 8:  # the first 8 bytes are the length of the JSON header
            yield Finding("pickle", name, None, "is not a safetensors file, despite its name")
    elif OPENVINO.fullmatch(name) and not is_pickle(path):
        yield from _text(name, path) if path.suffix == ".xml" else ()
    elif suffix in PICKLES or is_pickle(path) or start.startswith(b"\x93NUMPY"):
        yield Finding("pickle", name, None, "is or may contain a pickle: loading it can run any code")
    elif suffix in COMPILED or start.startswith((b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe")):
        yield Finding("code", name, None, "is compiled code, which cannot be reviewed")
    elif suffix in PYTHON:
        if path.suffix != ".py":
            yield Finding("code", name, None, "is Python code outside of a .py file, which is not read")
    elif path.suffix in BINARIES:
        if not start.startswith(BINARIES[path.suffix]):
            yield Finding("file", name, None, f"is not a {path.suffix} file, despite its name")
        elif path.suffix == ".onnx":
            yield from _external_data(name, path)
    elif path.suffix in TEXTS or path.name in NAMES or DOWNLOADED.fullmatch(name):
        yield from _text(name, path)
    else:
        yield Finding("file", name, None, "a model needs no file of this kind")


def _members(path: Path) -> list[str] | None:
    """Return the names of the files in an archive: an empty list if it is damaged; `None` if it is no archive."""
    try:
        if not zipfile.is_zipfile(path):
            return None
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except ARCHIVE_ERRORS:
        return []


def is_pickle(path: Path) -> bool:
    """Return whether a file starts with a pickle: one of protocol 2 or later, with its header, or one that calls."""
    with path.open("rb") as file:
        start = file.read(2)
        if start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"):
            return True
        file.seek(0)
        seen = set()
        try:
            for opcode, _, _ in pickletools.genops(file):
                seen.add(opcode.name)
                if opcode.name in CALLS and seen & ARGUMENTS and seen & IMPORTS:
                    return True
        except (ValueError, IndexError, OverflowError, MemoryError):  # not an opcode, or not its argument
            return False  # the last two: an argument that is longer than any file
    return False


def _text(name: str, path: Path) -> Iterator[Finding]:
    content = path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        yield Finding("file", name, None, "is not a text, despite its name")
    elif path.suffix == ".svg" and SCRIPT.search(content):
        yield Finding("code", name, None, "is a picture that runs scripts in a browser")


def _external_data(name: str, path: Path) -> Iterator[Finding]:
    """Find tensors of an ONNX file that are read from outside of the repository."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for match in EXTERNAL_DATA.finditer(content):
            location = content[match.end() : match.end() + match[1][0]].decode(errors="replace")
            if not is_inside(location):
                yield Finding("config", name, None, f"reads {location!r}, which is outside of the repository")
