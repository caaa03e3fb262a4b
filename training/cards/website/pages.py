"""`csezoo cards --html`: write the cards as a static website that needs no server and loads no external files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from huggingface_hub import ModelCard
from markupsafe import Markup

from ...errors import UserError, writing
from ...files import refuse_other_file
from ..entries import TASKS, Entry
from ..index import INTRODUCTION
from ..listing import COLUMNS, FILE, STS_AVERAGE, cells, shown_score
from ..method_texts import all_ideas
from .markdown import MARKDOWN, render

FILES = Path(__file__).parent / "files"
PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FILES), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
# Columns of numbers, shown in digits of equal width.
NUMBERS = ("MB", "CPU ms", STS_AVERAGE, *TASKS)
# The directory of the documentation in the website.
DOCS = "docs"
# Files beside a card that the website has too. A run may contain any other file, even a web page.
COPIED = {".csv", ".json", ".png", ".yaml"}
TITLE = "csezoo: model cards"


def refuse_place(directory: Path, *sources: Path) -> None:
    """Refuse a website inside of a directory that it is made from, or in place of another website.

    In the first case it would become a part of itself.
    """
    for source in sources:
        if directory.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"html: {directory} is in {source}, which the website is made from; give another directory"
            )
    refuse_other_file(directory / "index.html", TITLE, "html")


def write_website(cards: Path, entries: list[Entry], directory: Path, *, docs: bool = False) -> None:
    """Write the table of all models, a page for each card, and the files that the cards link."""
    with writing("html", directory):
        shutil.copytree(cards, directory, ignore=_others, dirs_exist_ok=True)
        for name in ("style.css", "table.js"):
            shutil.copy(FILES / name, directory)
        write_page(directory / "index.html", "index.html", title=TITLE, docs=docs, **index_parts(entries))
        for entry in entries:
            if entry.card:
                page = (directory / entry.model.card).with_name("index.html")
                parts = card_parts(entry.card, cards / entry.model.card, {cards: Path()})
                write_page(page, title=entry.model.name, docs=docs, **parts)


def write_page(page: Path, template: str = "page.html", **parts: Any) -> None:
    """Write a page of the website from a template; texts in it are escaped."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(PAGES.get_template(template).render(parts), encoding="utf-8")


def _others(directory: str, names: list[str]) -> list[str]:
    """Return the files to leave out. SVG files can contain scripts, so only those of the zoo are kept."""
    paths = [Path(directory, name) for name in names]
    return [path.name for path in paths if path.is_file() and path.suffix not in COPIED and not _is_idea(path)]


def _is_idea(path: Path) -> bool:
    idea = all_ideas().get(path.stem)
    return idea is not None and path.name == idea.name and path.read_bytes() == idea.read_bytes()


def index_parts(entries: list[Entry]) -> dict[str, Any]:
    """Return the parts of the page with all models: a table, from which `table.js` draws the plot, and its filters."""
    scored = {task for entry in entries for task in entry.model.scores}
    tasks = [task for task in TASKS if task in scored]
    rows = [
        {
            "link": quote(entry.model.card.replace("README.md", "index.html")),
            "cells": {**cells(entry.model), **{task: shown_score(entry.model, task) for task in tasks}},
        }
        for entry in entries
    ]
    return {
        "introduction": Markup(MARKDOWN.render(INTRODUCTION)),
        "score": STS_AVERAGE,
        "methods": sorted({name for entry in entries for name in entry.model.method.split(" + ")}),
        "backbones": sorted({entry.model.base_model for entry in entries if entry.model.base_model}),
        "tasks": tasks,
        "columns": [*COLUMNS, *tasks],
        "numbers": NUMBERS,
        "rows": rows,
        "file": FILE,
    }


def card_parts(card: ModelCard, file: Path, places: dict[Path, Path]) -> dict[str, Any]:
    """Return the parts of a card's page, with license, base model and data sets from its metadata."""
    shown = {"license": [card.data.get("license")], "base model": [card.data.get("base_model")]}
    shown["data"] = card.data.get("datasets") or [None]
    facts = [f"{name}: {', '.join(values)}" for name, values in shown.items() if values[0]]
    html = Markup(render(MARKDOWN.parse(card.text), file, places))
    return {"html": html, "facts": " · ".join(facts), "kind": "card", "root": "../"}
