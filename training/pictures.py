"""Pictures beside a run."""

from __future__ import annotations

import json
from pathlib import Path


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = {"delta": "representation divergence δ", "kappa": "weight convergence κ"}
    measured = [name for name in labels if name in lines[0]]
    figure = Figure(figsize=(5 * len(measured), 3.5), layout="constrained")
    FigureCanvasAgg(figure)  # draws to a file, whatever display there is
    for axes, name in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured, strict=True):
        axes.plot([line["step"] for line in lines], [line[name] for line in lines], marker="o", markersize=3)
        axes.set_xlabel("updates on labelled pairs")
        axes.set_ylabel(labels[name])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    figure.savefig(metrics.with_name("prefix_tuning.png"), dpi=150)
