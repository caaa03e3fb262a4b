"""What all pictures share: figures that need no window system, and files that are complete or absent."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure  # not pyplot, which looks for a window system

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def new_panels(
    count: int, width: float = 5, height: float = 3.5, *, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a new figure and its panels, side by side; each has this size in inches."""
    figure = new_figure(width * count, height)
    panels = list(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.3)
    return figure, panels


def save_picture(figure: Figure, path: str | Path) -> None:
    """Write a PNG file: the complete file or nothing, also where the disk is full."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    replace_file(Path(path), content.getvalue())
