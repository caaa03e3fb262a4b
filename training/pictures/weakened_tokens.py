"""Picture of the tokens that L2P-CSR weakens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .figures import new_figure, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass
class WeakenedView:
    """A view of a sentence, with its weakened tokens."""

    tokens: list[str]  # the n tokens as text
    # `(K, n)`, how much each of the K perturbed layers (the embedding layer first) weakens each token: 1 where the
    # token mask weakens it, 0 where it does not, and between the two for continuous masks
    weakened: np.ndarray


def draw_weakened_tokens(sentences: dict[str, list[WeakenedView]], path: str | Path) -> None:
    """Draw which tokens each layer weakens: a panel per sentence, with a heat map for each of its views.

    Tokens are on the horizontal axis. Layers are on the vertical axis, with the embedding layer at the bottom.
    Weakened tokens are grey, as in figure 3 of the L2P-CSR paper.
    """
    from matplotlib.patches import Patch

    views = [view for its_views in sentences.values() for view in its_views]
    longest = max(len(view.tokens) for view in views)
    # In inches: the side of a cell, the space below and left of a heat map, the title above a panel.
    cell, below, left, title = 0.36, 0.75, 1.6, 0.4
    heights = [[cell * len(view.weakened) + below for view in its_views] for its_views in sentences.values()]
    panel_heights = [sum(its_heights) + title for its_heights in heights]
    width = max(cell * longest + left, 6)
    figure = new_figure(width, sum(panel_heights))
    panels = figure.subfigures(len(sentences), 1, height_ratios=panel_heights, squeeze=False)[:, 0]
    for panel, (sentence, its_views), its_heights in zip(panels, sentences.items(), heights, strict=True):
        panel.suptitle(sentence, x=0.01, ha="left", fontsize=11, wrap=True, parse_math=False)
        rows = panel.subplots(len(its_views), 1, height_ratios=its_heights, squeeze=False)[:, 0]
        for number, (axes, view) in enumerate(zip(rows, its_views, strict=True), start=1):
            _heat_map(axes, view, columns=(width - left) / cell)
            axes.set_ylabel(f"view {number}", fontsize=9)
    key = [Patch(facecolor="0.45", edgecolor="black", label="weakened")]
    figure.legend(handles=key, loc="outside lower left", fontsize=9, frameon=False)
    save_picture(figure, path)


def _heat_map(axes: Axes, view: WeakenedView, *, columns: float) -> None:
    """Draw square cells of one size for all heat maps of a picture, however short the sentence."""
    layers, tokens = view.weakened.shape
    # 1 is drawn grey, not black.
    axes.pcolormesh(view.weakened, cmap="Greys", vmin=0, vmax=1.6, edgecolors="black", linewidth=0.6, clip_on=False)
    axes.set_xlim(0, columns)
    axes.set_aspect("equal", anchor="W")
    axes.set_xticks(np.arange(tokens) + 0.5, view.tokens, rotation=45, ha="right", rotation_mode="anchor", fontsize=9)
    for text in axes.get_xticklabels():
        text.set_parse_math(False)  # a dollar sign is not a formula
    names = ["embedding", *(f"layer {number}" for number in range(1, layers))]
    axes.set_yticks(np.arange(layers) + 0.5, names, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
