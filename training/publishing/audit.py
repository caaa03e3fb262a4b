"""Audit a repository before it is trusted: is every file that could run something one of csezoo's own?

No program can prove that foreign Python is harmless, so none is judged here. The Python files of a repository are byte
for byte those of a csezoo release, and nothing else in it is executable; or they are findings, to be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import model_info
from huggingface_hub.errors import HTTPError

from csezoo.modeling.serving.configuration_csezoo import OWN_FORM, PLAIN

from ..errors import UserError, one_line
from ..files import read_json
from ..hub import is_hidden, is_inside, local_directory, refuse_run, sha256

SERVING = Path(__file__).parents[2] / "modeling" / "serving"
# The checksums of the code of each release, by version and file. `python -m csezoo.training.publishing.audit VERSION`
# adds the installed code.
RELEASES = Path(__file__).parent / "releases.json"
MOST_FILES = 10_000  # far more than a repository has; `/` has more
# Files that only name or show something, and weights that no library runs.
HARMLESS = {".cff", ".jpg", ".json", ".md", ".png", ".safetensors", ".svg", ".txt", ".yaml", ".yml"}
NAMES = {"LICENSE", "NOTICE", ".gitattributes", ".gitignore"}
# What `hf download --local-dir` and `csezoo publish` write, and what `csezoo export` adds.
KNOWN = re.compile(
    r"\.cache/huggingface/(\.gitignore|CACHEDIR\.TAG|download/.*\.(metadata|lock))"
    r"|\.eval_results/[^/]+\.yaml|onnx/model(_int8)?\.onnx(\.data)?|openvino/openvino_model_qint8_quantized\.(xml|bin)"
)
SCRIPT = re.compile(rb"<script|<foreignObject|javascript:|\son\w+\s*=", re.IGNORECASE)
# JSON files that only name things: tokens, texts, results, and what was converted.
VALUES = {"tokenizer.json", "vocab.json", "fingerprint.json", "results.json", "conversion.json"}
# Keys of a configuration that name a class to import, and the classes that a repository needs.
CLASSES = {"type", "types", "activation_function", "tokenizer_class"}
KNOWN_CLASS = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?[A-Z]\w*|sentence_transformers\.(models|(\w+\.)?modules\.\w+)\.[A-Z]\w*|\w+"
)
# Other keys that run code from elsewhere, unless they are false.
RUNS_CODE = {"trust_remote_code", "custom_generate", "use_kernels", "kernel_config"}
# Keys that load code of another revision, or a tokenizer from elsewhere, with its code.
ELSEWHERE = {"code_revision", "tokenizer_name_or_path"}
# What csezoo and sentence-transformers write of an encoder. Other keys are options of loaders.
OF_ENCODERS = re.compile(r"(.*/)?sentence_[\w-]+_config\.json")
ENCODER_KEYS = {"max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name"}


class Finding(NamedTuple):
    """A file to read before trusting a repository, and why."""

    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


def audit_repository(repository: str, revision: str | None = None) -> tuple[str, list[Finding]]:
    """Audit a repository. From the Hub, everything but the safetensors files is downloaded.

    Returns:
        What was audited (the directory, or the repository at its commit) and the findings.

    Example:
        `audit_repository("somebody/their-model", "main")`
    """
    refuse_run(repository)
    directory = local_directory(repository, revision, ignored="*.safetensors")
    if Path(repository).is_dir():
        return repository, audit(directory)
    _refuse_a_part(repository, directory)
    return f"{repository} at {directory.name}", audit(directory)


def _refuse_a_part(repository: str, directory: Path) -> None:
    """Refuse a snapshot that lacks files. Where the Hub does not answer, a download returns what the cache has."""
    try:
        files = [file.rfilename for file in model_info(repository, revision=directory.name).siblings or []]
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(
            f"{repository}: the Hub did not list its files ({one_line(error)}); without it, an audit may miss some"
        ) from error
    if absent := [name for name in files if not name.endswith(".safetensors") and not (directory / name).is_file()]:
        raise UserError(f"{repository}: {absent[0]} was not downloaded; try again")


def audit(directory: Path, releases: Path = RELEASES) -> list[Finding]:
    """Return the findings in a directory, by file."""
    code = known_code(releases)
    try:
        found = list(islice(directory.rglob("*"), MOST_FILES + 1))
    except OSError as error:
        return [Finding(".", f"cannot be read ({one_line(error)})")]
    if len(found) > MOST_FILES:
        raise UserError(f"{directory} has more than {MOST_FILES:,} files, so it is no repository; give one")
    paths = {path.relative_to(directory).as_posix(): path for path in sorted(found)}
    if not paths:
        return [Finding(".", "is empty or cannot be read")]
    findings = []
    if ".git" in paths:
        findings.append(
            Finding(".git", "git runs the hooks that it names: audit a download of the repository instead")
        )
        paths = {name: path for name, path in paths.items() if name.split("/")[0] != ".git"}
    if "config.json" in paths and (absent := _named_code(paths["config.json"]) & code.keys() - paths.keys()):
        why = f"auto_map: {min(absent)} is not here; the other files of the repository may be missing too"
        findings.append(Finding("config.json", why))
    for name, path in paths.items():
        try:
            findings += [Finding(name, why) for why in _reasons(name, path, code)]
        except (OSError, ValueError, RecursionError) as error:
            findings.append(Finding(name, f"cannot be read ({one_line(error)})"))
    return findings


def _named_code(config: Path) -> set[str]:
    """Return the files that a configuration runs."""
    try:
        return {f"{name.rpartition('.')[0]}.py" for name in _strings(read_json(config).get("auto_map"))}
    except (UserError, OSError):
        return set()  # it is a finding by itself


def _reasons(name: str, path: Path, code: dict[str, set[str]]) -> Iterator[str]:
    """Yield why a file is a finding."""
    if path.is_dir():
        list(path.iterdir())  # raises an error if it cannot be read
        if path.is_symlink():
            yield "is a link to another directory"
        return
    if not path.is_file():
        yield "is neither a file nor a directory"
    elif path.suffix == ".py":
        if sha256(path) not in code.get(name, set()):
            yield "is not code of a csezoo release: read it"
    elif path.name == "adapter_config.json":
        yield "loads the model that it names, with its code, instead of this one"
    elif path.suffix == ".json":
        yield from _json_reasons(name, json.loads(path.read_bytes()))
    elif path.suffix == ".svg":
        if SCRIPT.search(path.read_bytes()):
            yield "is a picture that runs scripts in a browser"
    elif path.suffix in HARMLESS or path.name in NAMES or KNOWN.fullmatch(name):
        with path.open("rb") as file:
            file.read(1)
    else:
        yield "is no file that csezoo writes: it may contain code or a pickle"
    if is_hidden(name) and not (path.name in NAMES or KNOWN.fullmatch(name)):
        yield "is hidden: a model needs no hidden files"


def known_code(releases: Path = RELEASES) -> dict[str, set[str]]:
    """Return the checksums of the code that repositories carry, by file: of all releases, and as installed here."""
    known = {name: {checksum} for name, checksum in installed_code().items()}
    for files in read_json(releases).values():
        for name, checksum in files.items():
            known.setdefault(name, set()).add(checksum)
    return known


def installed_code() -> dict[str, str]:
    return {file.name: sha256(file) for file in SERVING.glob("*_csezoo.py")}


def add_release(version: str, releases: Path = RELEASES) -> None:
    """Add the installed code to the checksums of all releases."""
    content = {**read_json(releases), version: installed_code()}
    releases.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _json_reasons(name: str, value: object) -> Iterator[str]:
    """Yield the keys of a JSON file that load code or weights from elsewhere.

    Example:
        >>> list(_json_reasons("config.json", {"auto_map": {"AutoModel": "other/repository--file.Class"}}))
        ["auto_map: 'other/repository--file.Class' is not a class of csezoo"]
    """
    todo: list[Any] = [] if Path(name).name in VALUES else [value]
    reasons: list[str] = []
    for inner in todo:
        if isinstance(inner, list):
            todo += inner
        for key, part in inner.items() if isinstance(inner, dict) else ():
            reasons += _key_reasons(key, part)
            todo.append(part)
    if not reasons and OF_ENCODERS.fullmatch(name) and isinstance(value, dict):
        options = {key: part for key, part in value.items() if key not in ENCODER_KEYS and part}
        reasons = [f"{key}: is an option of the loader ({part!r:.80})" for key, part in options.items()]
    yield from reasons


def _key_reasons(key: str, value: object) -> Iterator[str]:
    texts = _strings(value)
    if key in ("auto_map", "impl"):
        known = {*PLAIN.values(), *OWN_FORM.values()}
        yield from (f"{key}: {text!r} is not a class of csezoo" for text in texts if text not in known)
    elif key in CLASSES:
        yield from (f"{key}: imports {text!r}" for text in texts if not KNOWN_CLASS.fullmatch(text))
    elif key.endswith(("attn_implementation", "attn_implementation_internal", "experts_implementation")):
        yield from (f"{key}: downloads and runs the kernels of {text!r}" for text in texts if "/" in text)
    elif key in RUNS_CODE and value is not False:
        yield f"{key}: runs code from elsewhere ({value!r})"
    elif key in ELSEWHERE and value is not None:
        yield f"{key}: loads from elsewhere ({value!r})"
    elif key in ("weight_map", "transformers_weights"):
        wrong = [text for text in texts if not is_inside(text) or not text.endswith(".safetensors")]
        yield from (f"{key}: {text!r} is no safetensors file of the repository" for text in wrong)
    elif key == "path" and isinstance(value, str) and not is_inside(value):
        yield f"path: {value!r} is outside of the repository"


def _strings(value: object) -> list[str]:
    """Return all texts in a JSON value, at any depth."""
    todo = [value]
    for inner in todo:
        todo += inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    return [inner for inner in todo if isinstance(inner, str)]


if __name__ == "__main__":
    import sys

    (release,) = sys.argv[1:]
    add_release(release)
