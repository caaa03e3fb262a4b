"""Pictures of the benchmarks' results."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from .figures import new_figure, new_panels, save_picture


def draw_scaling(axes: dict[str, dict[str, dict]], path: str | Path) -> None:
    """Draw training rows per second along each axis: a dot for each run, a line through the medians."""
    figure, panels = new_panels(len(axes), 3.2, 3)
    for panel, (name, points) in zip(panels, axes.items(), strict=True):
        panel.plot(list(points), [point["rows per second"] for point in points.values()], color="C0")
        for value, point in points.items():
            panel.plot([value] * len(point["runs"]), point["runs"], "o", color="C0", alpha=0.4, markersize=4)
        panel.set_xlabel(name)
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("rows per second")
    save_picture(figure, path)


def draw_soak(programs: dict[str, dict], path: str | Path) -> None:
    """Draw the memory of each program over time, and below it the number of open files."""
    figure = new_figure(4 * len(programs), 4)
    panels = figure.subplots(2, len(programs), squeeze=False, sharex="col", sharey="row")
    for (above, below), (name, samples) in zip(panels.T, programs.items(), strict=True):
        above.plot(samples["second"], [rss / 2**20 for rss in samples["rss"]], color="C0")
        below.plot(samples["second"], samples["files"], color="C1")
        above.set_title(name)
        below.set_xlabel("seconds")
    for panel in panels.flat:  # only after all are drawn, because they share axes
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.3)
    panels[0, 0].set_ylabel("memory, MiB")
    panels[1, 0].set_ylabel("open files")
    save_picture(figure, path)


def draw_short_vectors(points: list[dict], path: str | Path) -> None:
    """Draw quality against the bytes of a vector: a panel for each measure, a line for each label and precision.

    Args:
        points: the points of the report of `csezoo benchmark short`. A bar is the standard deviation over models.
    """
    from matplotlib.ticker import ScalarFormatter

    lines = defaultdict(list)
    for point in points:
        lines[point["label"], point["precision"]].append(point)
    labels = list(dict.fromkeys(label for label, _ in lines))
    styles = {"float32": "o-", "int8": "s--", "binary": "^:"}
    measures = {"spearman": "Spearman × 100, mean of the STS tasks", "recall@10": "recall@10 × 100, STS-B test"}
    figure, panels = new_panels(2, 5, 4.2)
    for panel, (measure, words) in zip(panels, measures.items(), strict=True):
        for (label, precision), of_line in lines.items():
            panel.errorbar(
                [point["bytes"] for point in of_line],
                [mean(point[measure]) for point in of_line],
                [stdev(point[measure]) if len(point[measure]) > 1 else 0 for point in of_line],
                fmt=styles[precision],
                color=f"C{labels.index(label)}",
                markersize=4,
                linewidth=1.2,
                capsize=2,
                label=f"{label}, {precision}",
            )
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.set_xlabel("bytes of a vector")
        panel.set_ylabel(words)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    save_picture(figure, path)
