"""Runs in a client's environment: embeds every group of texts with every repository, and writes what came of it.

    python SCRIPT REPOSITORIES TEXTS RESULTS NAME …

REPOSITORIES is a directory with those of these names, TEXTS a JSON file with lists of texts by group. RESULTS is a
directory that gets a file for each repository:
`{"versions": {package: version}, "vectors": {group: [[…], …] or the client's error}}`.
"""

import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path


def embed_all(load: Callable[[Path], Callable], *packages: str) -> None:
    """Embed all texts with all repositories.

    Args:
        load: opens a repository, and returns a function from a list of texts to vectors `(n, D)`.
        packages: whose versions are written down.
    """
    repositories, texts, results = map(Path, sys.argv[1:4])
    groups = json.loads(texts.read_text(encoding="utf-8"))
    versions = {package: importlib.metadata.version(package) for package in packages}
    for name in sys.argv[4:]:
        try:
            encode = load(repositories / name)
            vectors = {group: attempt(encode, texts) for group, texts in groups.items()}
        except KeyboardInterrupt:
            raise
        except (
            BaseException
        ) as error:  # whatever a client does with a repository is its answer; Rust's panics are one too
            vectors = dict.fromkeys(groups, said(error))
        partial = results / f"{name}.partial"
        partial.write_text(json.dumps({"versions": versions, "vectors": vectors}), encoding="utf-8")
        partial.rename(results / f"{name}.json")


def attempt(encode: Callable, texts: list[str]) -> list[list[float]] | str:
    try:
        return [[float(number) for number in vector] for vector in encode(texts)]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return said(error)


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
