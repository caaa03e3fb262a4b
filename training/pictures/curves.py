"""Curves: of a run over its updates, and of runs over a setting that varies."""

from __future__ import annotations

import json
from pathlib import Path

from .figures import new_panels, save_picture


def draw_prefix_tuning(metrics: Path) -> None:
    """Draw δ and κ over the updates of the stage on labelled pairs, and δ of dropout (figure 3 of DiffAug).

    The picture is `prefix_tuning.png`, beside the metrics. Without measurements nothing is drawn.
    """
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if "delta" in line]
    if not lines:
        return
    from matplotlib.ticker import MaxNLocator

    labels = {"delta": "representation divergence δ", "kappa": "weight convergence κ"}
    measured = [name for name in labels if name in lines[0]]
    figure, panels = new_panels(len(measured))
    for axes, name in zip(panels, measured, strict=True):
        for key, style in ((name, {"marker": "o", "markersize": 3}), (f"{name}_dropout", {"linestyle": "dashed"})):
            if points := [(line["step"], line[key]) for line in lines if key in line]:
                axes.plot(*zip(*points, strict=True), label="dropout" if key != name else "DiffAug", **style)
        if name == "delta":
            axes.legend()
        axes.set_xlabel("updates on labelled pairs")
        axes.set_ylabel(labels[name])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    save_picture(figure, metrics.with_name("prefix_tuning.png"))


def draw_training_curves(metrics: Path, chosen: int | None) -> None:
    """Draw the loss and the dev score over a run's updates, and mark the chosen checkpoint if it has a score.

    The picture is `training_curves.png`, beside the metrics. Without losses and scores nothing is drawn.
    """
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    scores = [(line["step"], line["dev"]) for line in lines if "dev" in line]
    drawn = [(name, points) for name, points in (("loss", losses), ("dev", scores)) if points]
    if not drawn:
        return
    figure, panels = new_panels(len(drawn))
    for axes, (name, points) in zip(panels, drawn, strict=True):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3)
        axes.set_xlabel("updates")
        axes.set_ylabel(name)
        if points is losses and min(loss for _, loss in losses) > 0:
            axes.set_yscale("log")  # the first updates dwarf the others
        # A run that was forced to resume with or without dev pairs may have chosen an update that has no score.
        if points is scores and chosen is not None and (score := dict(scores).get(chosen)) is not None:
            axes.plot([chosen], [score], marker="*", markersize=14, color="C3", linestyle="none")
            axes.set_title(f"chosen: {score:.2f} after {chosen} updates", fontsize=10)
    save_picture(figure, metrics.with_name("training_curves.png"))


def draw_points(
    series: dict[str, dict[str, list[tuple[float, float, float]]]], x: str, y: str, path: str | Path
) -> None:
    """Draw a panel for each measure: its values over a setting, a line for each series.

    Args:
        series: points (setting, mean, standard deviation) by measure and name of the line. A line of one point is
            drawn as a level.
        x, y: what the axes show; a panel of several measures names its own on the vertical axis.
    """
    figure, panels = new_panels(len(series))
    for axes, (measure, lines) in zip(panels, series.items(), strict=True):
        for name, points in lines.items():
            if len(points) == 1:
                axes.axhline(points[0][1], linestyle="--", linewidth=1, color="0.4", label=name)
                continue
            settings, means, deviations = zip(*sorted(points), strict=True)
            axes.errorbar(settings, means, yerr=deviations, marker="o", markersize=4, capsize=2, label=name)
        axes.set_xlabel(x)
        axes.set_ylabel(y if len(series) == 1 else measure)
        if len(lines) > 1:
            axes.legend(fontsize=8)
    save_picture(figure, path)
