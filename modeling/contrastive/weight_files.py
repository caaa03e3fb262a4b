"""The files that transformers reads the weights of a repository from: safetensors of its own, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import extract_commit_hash

from ..serving.modeling_csezoo import is_inside

ADAPTER = "adapter_config.json"  # with it, transformers loads the weights of the model that it names


def weight_files(repository: Any, folder: str = "", **where: Any) -> list[str]:
    """Return the names of the files with a model's weights, an index of them first.

    `use_safetensors=True` looks at the name of the index alone: what the index names, transformers reads.

    Args:
        repository: directory or Hub id.
        folder: of the model in it.
        where: options of `from_pretrained` that locate it.

    Returns:
        Paths in the repository. Whether the files exist is not checked.

    Raises:
        ValueError: a name is no safetensors file of the repository.
    """
    subfolder = where.pop("subfolder", "")
    quiet = ("_raise_exceptions_for_missing_entries", "_raise_exceptions_for_connection_errors")
    where |= dict.fromkeys((*quiet, "_raise_exceptions_for_gated_repo"), False)

    def find(name: str) -> str | None:
        return cached_file(repository, Path(subfolder, folder, name).as_posix(), **where)

    config = find("config.json")
    where["_commit_hash"] = extract_commit_hash(config, None)  # the Hub is not asked again for a file in the cache
    if find(ADAPTER):
        raise ValueError(f"{ADAPTER} names the model that its weights belong to; merge them, and save that model")
    name = _content(config).get("transformers_weights")
    name = name or (SAFE_WEIGHTS_NAME if find(SAFE_WEIGHTS_NAME) else SAFE_WEIGHTS_INDEX_NAME)
    names = [_inside(name, ".safetensors", ".safetensors.index.json")]
    if name.endswith(".json"):
        parts = _content(find(name)).get("weight_map", {})
        names += sorted({_inside(part, ".safetensors") for part in parts.values()})
    return [Path(folder, each).as_posix() for each in names]


def _content(file: str | None) -> dict[str, Any]:
    return json.loads(Path(file).read_text(encoding="utf-8")) if file else {}


def _inside(name: Any, *suffixes: str) -> str:
    if not (is_inside(name) and name.endswith(suffixes)):
        raise ValueError(f"its weights are in {name!r:.80}, which is no safetensors file of the repository")
    return name
