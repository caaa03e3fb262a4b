"""Points with their deviations, over a setting that varies."""

from __future__ import annotations

from pathlib import Path

from .figures import new_panels, save_picture


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
