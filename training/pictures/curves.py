"""Curves of a run over its updates."""

from __future__ import annotations

import json
from pathlib import Path


def draw_prefix_tuning(metrics: Path) -> None:
    """Draw δ and κ over the updates of the stage on labelled pairs, and δ of dropout (figure 3 of DiffAug).

    The picture is `prefix_tuning.png`, beside the metrics. Without measurements nothing is drawn.

    Args:
        metrics: a run's `metrics.jsonl`. A line with `delta` also has `kappa` and `delta_dropout` if the model has
            prefixes.
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
        for key, style in ((name, {"marker": "o", "markersize": 3}), (f"{name}_dropout", {"linestyle": "dashed"})):
            if points := [(line["step"], line[key]) for line in lines if key in line]:
                axes.plot(*zip(*points, strict=True), label="dropout" if key != name else "DiffAug", **style)
        if name == "delta":
            axes.legend()
        axes.set_xlabel("updates on labelled pairs")
        axes.set_ylabel(labels[name])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    figure.savefig(metrics.with_name("prefix_tuning.png"), dpi=150)


def draw_training_curves(metrics: Path, chosen: int | None) -> None:
    """Draw the loss and the dev score over a run's updates, and mark the chosen checkpoint if it has a score.

    The picture is `training_curves.png`, beside the metrics. Without losses and scores nothing is drawn.

    Args:
        metrics: a run's `metrics.jsonl`.
        chosen: update of the chosen checkpoint.
    """
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    scores = [(line["step"], line["dev"]) for line in lines if "dev" in line]
    panels = [(name, points) for name, points in (("loss", losses), ("dev", scores)) if points]
    if not panels:
        return
    figure = Figure(figsize=(5 * len(panels), 3.5), layout="constrained")
    for axes, (name, points) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3)
        axes.set_xlabel("updates")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if points is losses and min(loss for _, loss in losses) > 0:
            axes.set_yscale("log")  # the first updates dwarf the others
        # A run that was forced to resume with or without dev pairs may have chosen an update that has no score.
        if points is scores and (score := dict(scores).get(chosen)) is not None:
            axes.plot([chosen], [score], marker="*", markersize=14, color="C3", linestyle="none")
            axes.set_title(f"chosen: {score:.2f} after {chosen} updates", fontsize=10)
    figure.savefig(metrics.with_name("training_curves.png"), dpi=150)
