"""`csezoo cards --html`: write the cards as a static website that needs no server and loads no external files."""

from __future__ import annotations

import shutil
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import quote

from huggingface_hub import ModelCard

from ...errors import UserError, one_line
from ...files import refuse_links_out, refuse_other_file
from ..entries import TASKS, Entry
from ..index import COLUMNS, INTRODUCTION, cells
from ..listing import FILE, STS_AVERAGE, shown_score
from ..method_texts import all_ideas
from .markdown import MARKDOWN, render

FILES = Path(__file__).parent / "files"
# Columns of numbers, shown in digits of equal width.
NUMBERS = ("MB", "CPU ms", STS_AVERAGE, *TASKS)
# The directory of the documentation in the website.
DOCS = "docs"
# Files beside a card that the website has too. A run may contain any other file, even a web page.
COPIED = {".csv", ".json", ".png", ".yaml"}
TITLE = "csezoo: model cards"


def check_place(directory: Path, *sources: Path) -> None:
    """Refuse a website inside of a directory that it is made from, or in place of another website.

    In the first case it would become a part of itself.

    Raises:
        UserError: it is one of these.
    """
    for source in sources:
        if directory.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"html: {directory} is in {source}, which the website is made from; give another directory"
            )
    refuse_other_file(directory / "index.html", TITLE, "html")


def write_website(cards: Path, entries: list[Entry], directory: Path, *, docs: bool = False) -> None:
    """Write the table of all models, a page for each card, and the files that the cards link.

    Args:
        cards: the directory of the cards.
        entries: the rows of their index.
        directory: the directory of the website, created if needed. Other files in it are kept.
        docs: whether the website has the documentation too, which `write_documentation` writes.

    Raises:
        UserError: the directory cannot be written or is in that of the cards, or a link leads out of the latter.
    """
    check_place(directory, cards)
    refuse_links_out(cards)
    try:
        shutil.copytree(cards, directory, ignore=_others, dirs_exist_ok=True)
        for name in ("style.css", "table.js"):
            shutil.copy(FILES / name, directory)
        write_page(directory / "index.html", TITLE, index_body(entries), docs=docs)
        for entry in entries:
            if entry.card:
                page = (directory / entry.model.card).with_name("index.html")
                body = card_body(entry.card, cards / entry.model.card, {cards: Path()})
                write_page(page, entry.model.name, body, kind=' class="card"', root="../", docs=docs)
    except OSError as error:
        raise UserError(f"html: {directory} cannot be written ({one_line(error)})") from error


def write_page(page: Path, title: str, body: str, *, kind: str = "", root: str = "", docs: bool = False) -> None:
    """Write a page of the website.

    Args:
        page: the file.
        title: its title, as text.
        body: its content, as HTML.
        kind: an attribute of the main element.
        root: path from the page to the directory of the website, with a slash at its end.
        docs: whether the navigation links the documentation.
    """
    links = {"Models": "index.html"} | ({"Documentation": f"{DOCS}/index.html"} if docs else {})
    navigation = "".join(f'<a href="{root}{target}">{name}</a>' for name, target in links.items())
    template = Template((FILES / "template.html").read_text(encoding="utf-8"))
    text = template.substitute(title=escape(title), body=body, kind=kind, root=root, navigation=navigation)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def _others(directory: str, names: list[str]) -> list[str]:
    """Return the files to leave out. SVG files can contain scripts, so only those of the zoo are kept."""
    paths = [Path(directory, name) for name in names]
    return [path.name for path in paths if path.is_file() and path.suffix not in COPIED and not _is_idea(path)]


def _is_idea(path: Path) -> bool:
    idea = all_ideas().get(path.stem)
    return idea is not None and path.name == idea.name and path.read_bytes() == idea.read_bytes()


def index_body(entries: list[Entry]) -> str:
    """Return the HTML of the table of all models, with a plot, a search field, filters, and columns for each task.

    The script `table.js` draws the plot from the table.
    """
    methods = sorted({name for entry in entries for name in entry.model.method.split(" + ")})
    backbones = sorted({entry.model.base_model for entry in entries if entry.model.base_model})
    scored = {task for entry in entries for task in entry.model.scores}
    tasks = [task for task in TASKS if task in scored]
    boxes = "".join(f'<label><input type="checkbox" value="{task}"> {task}</label>' for task in tasks)
    heads = "".join(_head(column, column in tasks) for column in (*COLUMNS, *tasks))
    rows = "\n".join(f'<tr data-status="{escape(e.model.status)}">{_cells(e, tasks)}</tr>' for e in entries)
    return f"""{MARKDOWN.render(INTRODUCTION)}
<figure id="plot" hidden>
<p class="key"></p>
<svg role="img" aria-label="score against cost of the models in the table"></svg>
<figcaption>Up: {STS_AVERAGE}. Across:
<select id="cost" aria-label="cost"><option value="CPU ms">processor time per sentence, ms</option>
<option value="MB">size, MB</option></select>. Each point is a model in the table and a
link to its card. The papers' scores are on the papers' encoders, so compare points of one colour.</figcaption>
</figure>
<div class="controls">
<input id="search" type="search" placeholder="search" aria-label="search">
<select id="method" aria-label="method"><option value="">all methods</option>{_options(methods)}</select>
<select id="backbone" aria-label="base model"><option value="">all base models</option>{_options(backbones)}</select>
</div>
<details class="tasks"><summary>columns for single tasks</summary>{boxes}</details>
<p class="facts"><output id="count"></output></p>
<div class="scroll"><table id="models">
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<p class="facts"><a href="{FILE}">{FILE}</a>: a line for each model, task and seed</p>"""


def _options(names: list[str]) -> str:
    return "".join(f"<option>{escape(name)}</option>" for name in names)


def _head(column: str, hidden: bool) -> str:
    return f'<th scope="col"{" hidden" * hidden}><button type="button">{escape(column)}</button></th>'


def _cells(entry: Entry, tasks: list[str]) -> str:
    link = quote(entry.model.card.replace("README.md", "index.html"))
    name, *others = cells(entry.model).items()
    parts = [f'<td><a href="{escape(link)}">{escape(name[1])}</a></td>']
    for column, text in [*others, *((task, shown_score(entry.model, task)) for task in tasks)]:
        kind = ' class="number"' if column in NUMBERS else ' class="status"' if column == "status" else ""
        hidden = " hidden" * (column in tasks)
        parts.append(f'<td{kind}{hidden} data-label="{escape(column)}">{escape(text)}</td>')
    return "".join(parts)


def card_body(card: ModelCard, file: Path, places: dict[Path, Path]) -> str:
    """Return a card as HTML, with license, base model and data sets from its metadata.

    Args:
        card: the card.
        file: its file.
        places: see `on_website`.
    """
    data = card.data
    html = render(MARKDOWN.parse(card.text), file, places)
    shown = {"license": [data.get("license")], "base model": [data.get("base_model")]}
    shown["data"] = data.get("datasets") or [None]
    facts = [f"{name}: {', '.join(values)}" for name, values in shown.items() if values[0]]
    return f"""{html}
<p class="facts">{escape(" · ".join(facts))}</p>"""
