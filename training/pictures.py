"""Pictures, each a PNG file. matplotlib is imported where it draws: it takes its time, and few commands need it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Those that a card shows where they lie beside it, with what they show.
PICTURES = {
    "training_curves.png": "Loss and dev score over the updates; the star is the checkpoint that was chosen",
    "similarities.png": "Cosine similarities of pairs at each gold score",
    "prefix_tuning.png": "Representation divergence δ and weight convergence κ while the prefixes are tuned",
    "layers.png": "The score of every layer under every pooling",
    "pairs.png": "Pairs of sentences on a plane",
    "weakened.png": "Tokens that training weakens, at each perturbed layer",
}


@dataclass
class WeakenedView:
    """A view of a sentence, and where it is weakened.

    Args:
        tokens: the n tokens as text.
        weakened: `(K, n)`, at each of the K perturbed layers (the embedding layer first) how much of each token is
            taken: 1 where the token mask weakens it, 0 where it does not, between for continuous masks.
    """

    tokens: list[str]
    weakened: np.ndarray


def draw_weakened_tokens(sentences: dict[str, list[WeakenedView]], path: str | Path) -> None:
    """Which tokens are weakened at which layer: a panel for each sentence, in it a heat map for each of its views.

    Tokens run along one axis and layers up the other, from the embedding layer on; grey is weakened, as in figure 3 of
    the L2P-CSR paper.

    Args:
        sentences: titles to views.
        path: of the PNG file.
    """
    from matplotlib.figure import Figure  # without pyplot: no window system is looked for
    from matplotlib.patches import Patch

    views = [view for its_views in sentences.values() for view in its_views]
    longest = max(len(view.tokens) for view in views)
    # In inches: a cell's side, what stands below and left of a heat map, the line above a sentence's own.
    cell, below, left, title = 0.36, 0.75, 1.6, 0.4
    heights = [[cell * len(view.weakened) + below for view in its_views] for its_views in sentences.values()]
    panel_heights = [sum(its_heights) + title for its_heights in heights]
    width = max(cell * longest + left, 6)
    figure = Figure(figsize=(width, sum(panel_heights)), dpi=150, layout="constrained")
    panels = figure.subfigures(len(sentences), 1, height_ratios=panel_heights, squeeze=False)[:, 0]
    for panel, (sentence, its_views), its_heights in zip(panels, sentences.items(), heights, strict=True):
        panel.suptitle(sentence, x=0.01, ha="left", fontsize=11, wrap=True, parse_math=False)
        rows = panel.subplots(len(its_views), 1, height_ratios=its_heights, squeeze=False)[:, 0]
        for number, (axes, view) in enumerate(zip(rows, its_views, strict=True), start=1):
            _heat_map(axes, view, columns=(width - left) / cell)
            axes.set_ylabel(f"view {number}", fontsize=9)
    key = [Patch(facecolor="0.45", edgecolor="black", label="weakened")]
    figure.legend(handles=key, loc="outside lower left", fontsize=9, frameon=False)
    figure.savefig(path)


def _heat_map(axes: Axes, view: WeakenedView, *, columns: float) -> None:
    """Square cells, of one size in all heat maps of a picture, however short the sentence."""
    layers, tokens = view.weakened.shape
    # A full 1 is grey, not black.
    axes.pcolormesh(view.weakened, cmap="Greys", vmin=0, vmax=1.6, edgecolors="black", linewidth=0.6, clip_on=False)
    axes.set_xlim(0, columns)
    axes.set_aspect("equal", anchor="W")
    axes.set_xticks(np.arange(tokens) + 0.5, view.tokens, rotation=45, ha="right", rotation_mode="anchor", fontsize=9)
    for text in axes.get_xticklabels():
        text.set_parse_math(False)  # a dollar is a dollar
    names = ["embedding", *(f"layer {number}" for number in range(1, layers))]
    axes.set_yticks(np.arange(layers) + 0.5, names, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_prefix_tuning(metrics: Path) -> None:
    """δ and κ over the updates of the stage on labelled pairs, as `prefix_tuning.png` beside the metrics (DiffAug's
    figure 3). Nothing is drawn where they were not measured.

    Args:
        metrics: a run's `metrics.jsonl`; a line with `delta` has `kappa` too, where there are prefixes.
    """
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if "delta" in line]
    if not lines:
        return
    from matplotlib.figure import Figure

    labels = {"delta": "representation divergence δ", "kappa": "weight convergence κ"}
    measured = [name for name in labels if name in lines[0]]
    figure = Figure(figsize=(5 * len(measured), 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured, strict=True):
        axes.plot([line["step"] for line in lines], [line[name] for line in lines], marker="o", markersize=3)
        axes.set_xlabel("updates on labelled pairs")
        axes.set_ylabel(labels[name])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    figure.savefig(metrics.with_name("prefix_tuning.png"), dpi=150)


def draw_training_curves(metrics: Path) -> None:
    """Loss and dev score over a run's updates, the chosen checkpoint marked, as `training_curves.png` beside them.

    Args:
        metrics: a run's `metrics.jsonl`.
    """
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    scores = [(line["step"], line["dev"]) for line in lines if "dev" in line]
    panels = [(name, points) for name, points in (("loss", losses), ("dev, Spearman", scores)) if points]
    if not panels:
        return
    figure = Figure(figsize=(5 * len(panels), 3.5), layout="constrained")
    for axes, (name, points) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3)
        axes.set_xlabel("updates")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if points is scores:
            step, best = max(scores, key=lambda point: (point[1], -point[0]))  # the first of equals
            axes.plot([step], [best], marker="*", markersize=14, color="C3", linestyle="none")
            axes.set_title(f"chosen: {best:.2f} after {step} updates", fontsize=10)
        elif min(loss for _, loss in losses) > 0:
            axes.set_yscale("log")  # the first updates dwarf the others
    figure.savefig(metrics.with_name("training_curves.png"), dpi=150)


def draw_similarities(similarities: np.ndarray, scores: np.ndarray, path: str | Path, *, title: str = "") -> None:
    """How the cosines of pairs spread at each gold score, as in DiffCSE's figure 2: a violin each fifth of the scale.

    Args:
        similarities: `(n,)` cosines.
        scores: `(n,)` gold scores on any scale.
        path: of the PNG file.
        title: what the pairs are.
    """
    from matplotlib.figure import Figure

    low, width = scores.min(), np.ptp(scores) / 5 or 1.0
    rounded = np.rint((scores - low) / width).astype(int)
    present = np.unique(rounded)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.violinplot([similarities[rounded == step] for step in present], present, widths=0.8, showmedians=True)
    axes.set_xticks(present, [f"{low + step * width:g}" for step in present])
    axes.set_xlabel("gold score, rounded")
    axes.set_ylabel("cosine similarity")
    axes.set_ylim(min(0.0, float(similarities.min())) - 0.02, 1.02)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3, axis="y")
    figure.savefig(path, dpi=150)


def draw_pairs(vectors: np.ndarray, alike: np.ndarray, path: str | Path) -> None:
    """Pairs of sentences on a plane by t-SNE, as in SG-OPT's figure 5: a line joins the two sentences of a pair.

    Args:
        vectors: `(n, 2, d)`, the two sentences of each pair.
        alike: `(n,)` whether they mean the same.
        path: of the PNG file.
    """
    from matplotlib.figure import Figure
    from sklearn.manifold import TSNE

    count = len(vectors)
    perplexity = min(15, 2 * count - 1)
    points = TSNE(perplexity=perplexity, metric="cosine", init="pca", random_state=0).fit_transform(
        vectors.reshape(2 * count, -1)
    )
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    for kind, color, name in ((True, "C3", "same meaning"), (False, "C0", "unrelated")):
        for number, pair in enumerate(points.reshape(count, 2, 2)[alike == kind]):
            axes.plot(*pair.T, color=color, linewidth=1, alpha=0.7, label=name if number == 0 else None)
            for point in pair:
                axes.annotate(str(number), point, color=color, fontsize=8, ha="center", va="center")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(loc="best", fontsize=9)
    figure.savefig(path, dpi=150)


def draw_layers(scores: np.ndarray, poolings: list[str], path: str | Path) -> None:
    """A heat map of scores by layer and pooling (SG-OPT's figure 1); the best layer of each pooling is framed.

    Args:
        scores: `(layers, poolings)`, the embedding layer first.
        poolings: names of the columns.
        path: of the PNG file.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(1.2 * len(poolings) + 2, 0.4 * len(scores) + 1.2), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(scores, aspect="auto", origin="lower", cmap="viridis")
    middle = (scores.min() + scores.max()) / 2
    for (layer, column), score in np.ndenumerate(scores):
        color = "w" if score < middle else "k"
        axes.text(column, layer, f"{score:.1f}", ha="center", va="center", color=color, fontsize=9)
    for column, layer in enumerate(scores.argmax(0)):
        axes.add_patch(Rectangle((column - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor="C3", linewidth=2))
    axes.set_xticks(range(len(poolings)), poolings)
    axes.set_yticks(range(len(scores)), ["embedding", *(f"layer {number}" for number in range(1, len(scores)))])
    figure.colorbar(shown, label="Spearman on STS-B test")
    figure.savefig(path, dpi=150)


def draw_scaling(axes: dict[str, dict[str, dict]], path: str | Path) -> None:
    """Training rows per second along each axis: every run a dot, the line through the medians.

    Args:
        axes: of `benchmark_scaling`'s report.
        path: of the PNG file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(axes), 3), dpi=150, layout="constrained")
    for panel, (name, points) in zip(figure.subplots(1, len(axes), squeeze=False)[0], axes.items(), strict=True):
        panel.plot(list(points), [point["rows per second"] for point in points.values()], color="C0")
        for value, point in points.items():
            panel.plot([value] * len(point["runs"]), point["runs"], "o", color="C0", alpha=0.4, markersize=4)
        panel.set_xlabel(name)
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.3)
    figure.axes[0].set_ylabel("rows per second")
    figure.savefig(path)


def draw_soak(programs: dict[str, dict], path: str | Path) -> None:
    """Memory of each program over its time, and below it its open files.

    Args:
        programs: of `benchmark_soak`'s report.
        path: of the PNG file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(programs), 4), dpi=150, layout="constrained")
    panels = figure.subplots(2, len(programs), squeeze=False, sharex="col", sharey="row")
    for (above, below), (name, made) in zip(panels.T, programs.items(), strict=True):
        above.plot(made["second"], [rss / 2**20 for rss in made["rss"]], color="C0")
        below.plot(made["second"], made["files"], color="C1")
        above.set_title(name)
        below.set_xlabel("seconds")
    for panel in panels.flat:  # after all are drawn: they share their axes
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.3)
    panels[0, 0].set_ylabel("memory, MiB")
    panels[1, 0].set_ylabel("open files")
    figure.savefig(path)
