"""The checkpoints that the papers' authors released, and how the checkpoints of their training scripts are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

RELEASED = Path(__file__).with_name("released.yaml")
STATUS = "published by its authors, not verified here"


@dataclass(frozen=True)
class Kind:
    """The checkpoints of one training script. The fields are those of `released.yaml`, which explains them."""

    method: str
    model: dict[str, Any]
    dropped: dict[str, str]
    texts: list[str]
    data: str | None
    release: str
    license: str | None
    license_note: str
    kept: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    servings: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Released:
    """A checkpoint on the Hub. The fields are those of `released.yaml`, which explains them."""

    kind: str
    base_model: str
    seen: str | None
    scores: list[dict[str, Any]]
    model: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    notes: str | None = None


@cache
def _content() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(RELEASED.read_text(encoding="utf-8"))


def kinds() -> dict[str, Kind]:
    """Return the kinds of checkpoints by name, as `csezoo convert --as` takes it."""
    return {name: Kind(**values) for name, values in _content()["kinds"].items()}


def released() -> dict[str, Released]:
    """Return the released checkpoints by Hub id."""
    return {name: Released(**values) for name, values in _content()["released"].items()}
