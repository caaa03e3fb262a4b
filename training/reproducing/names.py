"""The names of the tables and figures, and the files of their manifests. Imports nothing that takes time."""

from __future__ import annotations

import difflib
from pathlib import Path

from ..errors import UserError

ITEMS = Path(__file__).parent / "items"


def item_names() -> list[str]:
    """Return the names of all items, by paper and number.

    Example:
        >>> item_names()[:2]
        ['diffaug/figure-3a', 'diffaug/figure-3b']
    """
    names = [path.relative_to(ITEMS).with_suffix("").as_posix() for path in ITEMS.rglob("*.yaml")]
    return sorted(names, key=_by_number)


def _by_number(name: str) -> tuple[str, int, str]:
    start, _, number = name.rpartition("-")
    digits = "".join(character for character in number if character.isdigit())
    return (start, int(digits), number) if digits else (name, 0, "")


def item_file(name: str) -> Path:
    """Return the file of an item's manifest."""
    names = item_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise UserError(
            f"no item {name!r}: " + (f"did you mean {near[0]}?" if near else "csezoo reproduce lists them")
        )
    return ITEMS / f"{name}.yaml"
