"""Writing an item: `table.md`, `.tex`, `.csv`, `.html`, `results.json`, and pictures for a figure."""

from __future__ import annotations

import html
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ..cards.results_files import format_rows
from ..cards.website.markdown import MARKDOWN
from ..errors import UserError
from ..files import replace_file, write_json
from ..loop.weakened import weakened_tokens
from ..pictures.curves import draw_points
from ..pictures.portraits import PORTRAITS
from ..pictures.weakened_tokens import draw_weakened_tokens
from .manifests import Item
from .plan import Planned, Run
from .pooling import Cell, Line, mark_other_data

logger = logging.getLogger(__name__)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{font-family: sans-serif; margin: 2em}}
table {{border-collapse: collapse; display: block; overflow-x: auto}}
td, th {{padding: .2em .6em; border-bottom: 1px solid #ccc}}</style></head>
<body>{body}</body></html>
"""
MARK = "†"


def table_rows(lines: list[Line]) -> list[tuple[str, dict[str, str]]]:
    """Return the rows of a table as text: ours, the paper's, the difference and z. A marked row has a remark."""
    rows = []
    for line in lines:
        mark = f" {MARK}" if line.reasons else ""
        for name, show in SHOWN.items():
            cells = {column: text for column, cell in line.cells.items() if (text := show(cell))}
            if cells:
                rows.append((f"{line.name}{name}{mark if not name or name == PAPER else ''}", cells))
    return rows


def _number(number: float | None, deviation: float | None, after: str = "") -> str:
    if number is None:
        return ""
    return f"{number:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "") + after


PAPER = ", paper"
SHOWN: dict[str, Callable[[Cell], str]] = {
    "": lambda cell: _number(cell.mean, cell.sd, f" ({cell.n})"),
    PAPER: lambda cell: _number(cell.paper, cell.paper_sd),
    ", difference": lambda cell: "" if cell.difference is None else f"{cell.difference:+.2f}",
    ", z": lambda cell: "" if cell.z is None else f"{cell.z:+.1f}",
    ", compared": lambda cell: "" if cell.p is None else f"{cell.low:+.2f} to {cell.high:+.2f}, p {cell.p:.3f}",
}


def write_item(item: Item, planned: list[Planned], lines: list[Line], directory: Path, data: str) -> list[Path]:
    """Write the table, the results with their receipts, and the pictures of an item."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = mark_other_data(lines)
    rows = table_rows(lines)
    text = markdown(item, lines)
    contents = {
        "table.md": text,
        "table.tex": format_rows(rows, "latex") + "\n",
        "table.csv": format_rows(rows, "csv") + "\n",
        "table.html": PAGE.format(title=html.escape(item.title), body=MARKDOWN.render(text)),
    }
    for name, content in contents.items():
        replace_file(directory / name, content)
    results = {
        "item": item.name,
        "title": item.title,
        "source": item.source,
        "notes": item.notes,
        "needs": item.needs,
        "rows": [asdict(line) for line in lines],
    }
    write_json(directory / "results.json", results)
    written = [directory / name for name in (*contents, "results.json")]
    return written + _draw(item, planned, lines, directory, data)


def markdown(item: Item, lines: list[Line]) -> str:
    """Return the table of an item as a page in Markdown, with its notes and the reasons of its marks."""
    parts = [f"# {item.title}", f"{item.source}. Ours: mean ± standard deviation (runs)."]
    parts.append(format_rows(table_rows(lines)))
    if marked := [f"* {MARK} {line.name}: {'; '.join(line.reasons)}" for line in lines if line.reasons]:
        parts.append("\n".join(marked))
    if others := [f"* {line.name}, paper: {line.source}" for line in lines if line.source != item.source]:
        parts.append("\n".join(others))
    if any(cell.p is not None for line in lines for cell in line.cells.values()):
        parts.append(
            f"Compared: the middle 95 % of the difference from {item.against}, and its p, by a paired bootstrap over "
            "the pairs of the STS tasks. Scores are averaged over seeds, whose spread is not part of it."
        )
    if item.notes or item.needs:
        parts.append("\n".join([f"* {note}" for note in item.notes] + [f"* Needs {need}" for need in item.needs]))
    return "\n\n".join(parts) + "\n"


def _draw(item: Item, planned: list[Planned], lines: list[Line], directory: Path, data: str) -> list[Path]:
    """Draw a figure: one picture of all rows, or one for each run that is finished."""
    figure = item.figure or {}
    pictures: list[Path] = []
    if "x" in figure:
        path = directory / "figure.png"
        draw_points(_series(item, lines), figure["x"], figure["y"], path)
        return [path]
    for row in planned:
        for run in row.runs:
            path = directory / (re.sub(r"[^\w.-]+", "-", f"{row.row.label}-{run.directory.name}") + ".png")
            if _draw_run(figure, run, path, data):
                pictures.append(path)
    return pictures


def _draw_run(figure: dict, run: Run, path: Path, data: str) -> bool:
    """Draw one run, and return whether there was something to draw."""
    if run.recipe and not (run.directory / "results.json").is_file():
        return False
    try:
        if "portrait" in figure:
            PORTRAITS[figure["portrait"]](run.model, run.pooling, data, path)
        elif "weakened" in figure and run.recipe:
            draw_weakened_tokens(weakened_tokens(run.directory, figure["weakened"]), path)
    except UserError as error:
        if not run.recipe:
            raise
        logger.warning("%s is not drawn anew: %s", path, error)  # the weights of a finished run may be deleted
    if "picture" in figure and (run.directory / figure["picture"]).is_file():
        shutil.copy(run.directory / figure["picture"], path)
    return path.is_file()


def _series(item: Item, lines: list[Line]) -> dict[str, dict[str, list[tuple[float, float, float]]]]:
    """Return the points (x, mean, standard deviation) of each column, by the name of their line."""
    series: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for column in item.columns:
        panel = series.setdefault(column.name, {})
        for line in lines:
            cell = line.cells[column.name]
            if line.x is not None and cell.mean is not None:
                panel.setdefault(line.group or "ours", []).append((line.x, cell.mean, cell.sd or 0.0))
            if line.x is not None and cell.paper is not None:
                panel.setdefault(f"{line.group} paper".strip(), []).append((line.x, cell.paper, cell.paper_sd or 0.0))
    return series
