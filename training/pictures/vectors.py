"""Pictures of a model's vectors: similarities at each gold score, pairs on a plane, scores of every layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .figures import new_figure, new_panels, save_picture


def draw_similarities(
    similarities: np.ndarray | dict[str, np.ndarray], scores: np.ndarray, path: str | Path, *, title: str = ""
) -> None:
    """Draw the spread of cosines at each gold score (figure 2 of DiffCSE), one violin per fifth of the scale.

    Args:
        similarities: `(n,)` cosines; or those of several models by name, which are drawn side by side.
        scores: `(n,)` gold scores on any scale.
    """
    drawn = similarities if isinstance(similarities, dict) else {title: similarities}
    low, width = scores.min(), np.ptp(scores) / 5 or 1.0
    rounded = np.rint((scores - low) / width).astype(int)
    present = np.unique(rounded)
    figure, panels = new_panels(len(drawn), 6 if len(drawn) == 1 else 4, 4, sharey=True)
    for axes, (name, cosines) in zip(panels, drawn.items(), strict=True):
        axes.violinplot([cosines[rounded == step] for step in present], present, widths=0.8, showmedians=True)
        axes.set_xticks(present, [f"{low + step * width:g}" for step in present])
        axes.set_xlabel("gold score, rounded")
        axes.set_title(name, fontsize=10)
    lowest = min(float(cosines.min()) for cosines in drawn.values())
    panels[0].set_ylabel("cosine similarity")
    panels[0].set_ylim(min(0.0, lowest) - 0.02, 1.02)
    save_picture(figure, path)


def draw_pairs(vectors: np.ndarray, alike: np.ndarray, path: str | Path) -> None:
    """Draw pairs of sentences on a plane by t-SNE (figure 5 of SG-OPT). A line joins the two sentences of a pair.

    Args:
        vectors: `(n, 2, d)`, the two sentences of each pair.
        alike: `(n,)`, whether the two mean the same.
    """
    from sklearn.manifold import TSNE

    count = len(vectors)
    perplexity = min(15, 2 * count - 1)
    points = TSNE(perplexity=perplexity, metric="cosine", init="pca", random_state=0).fit_transform(
        vectors.reshape(2 * count, -1)
    )
    figure = new_figure(6, 6)
    axes = figure.subplots()
    for kind, color, name in ((True, "C3", "same meaning"), (False, "C0", "unrelated")):
        for number, pair in enumerate(points.reshape(count, 2, 2)[alike == kind]):
            axes.plot(*pair.T, color=color, linewidth=1, alpha=0.7, label=name if number == 0 else None)
            for point in pair:
                axes.annotate(str(number), point, color=color, fontsize=8, ha="center", va="center")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(loc="best", fontsize=9)
    save_picture(figure, path)


def draw_layers(scores: np.ndarray, poolings: list[str], path: str | Path) -> None:
    """Draw a heat map of scores by layer and pooling (figure 1 of SG-OPT), with the best layer of each pooling framed.

    Args:
        scores: `(layers, poolings)`, the embedding layer first.
    """
    from matplotlib.patches import Rectangle

    figure = new_figure(1.2 * len(poolings) + 2, 0.4 * len(scores) + 1.2)
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
    save_picture(figure, path)
