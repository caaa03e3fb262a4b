"""`csezoo cards --html`: write the cards as a static website that needs no server and loads no external files."""

from __future__ import annotations

import shutil
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import quote, urlsplit

from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML

from ..errors import UserError, one_line
from ..files import refuse_links_out
from .index import COLUMNS, INTRODUCTION, PAPER, Entry
from .method_texts import IDEAS

FILES = Path(__file__).parent / "website_files"
# Columns of numbers, shown in digits of equal width.
NUMBERS = ("STS-B dev", "STS average", *PAPER)
# HTML in a card is shown as text.
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
# The directory of the documentation in the website.
DOCS = "docs"
# Files beside a card that the website has too. A run may contain any other file, even a web page.
COPIED = {".json", ".png", ".yaml"}


def local_image(self: RendererHTML, tokens: list, index: int, *rest: object) -> str:
    """Return a picture as HTML if it is a file of the website, else its description."""
    source = urlsplit(str(tokens[index].attrs["src"]))
    external = source.scheme or source.netloc
    return escape(tokens[index].content) if external else self.image(tokens, index, *rest)  # type: ignore[arg-type]


MARKDOWN.add_render_rule("image", local_image)


def check_place(directory: Path, *sources: Path) -> None:
    """Refuse a website inside of a directory that it is made from, because it would become a part of itself.

    Raises:
        UserError: it is inside of one.
    """
    for source in sources:
        if directory.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"html: {directory} is in {source}, which the website is made from; give another directory"
            )


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
        write_page(directory / "index.html", "csezoo: model cards", index_body(entries), docs=docs)
        for entry in entries:
            if entry.card:
                page = (directory / entry.link).with_name("index.html")
                body = card_body(entry.card)
                write_page(page, entry.cells["name"], body, kind=' class="card"', root="../", docs=docs)
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
    return (IDEAS / path.name).is_file() and path.read_bytes() == (IDEAS / path.name).read_bytes()


def scrolling(html: str) -> str:
    """Return HTML in which every table can be scrolled separately."""
    return html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def index_body(entries: list[Entry]) -> str:
    """Return the HTML of the table of all models, with a search field and a filter."""
    methods = sorted({name for entry in entries for name in entry.cells["method"].split(" + ")})
    options = "".join(f"<option>{escape(name)}</option>" for name in methods)
    heads = "".join(f'<th scope="col"><button type="button">{escape(column)}</button></th>' for column in COLUMNS)
    rows = "\n".join(f"<tr>{_cells(entry)}</tr>" for entry in entries)
    return f"""{MARKDOWN.render(INTRODUCTION)}
<div class="controls">
<input id="search" type="search" placeholder="search" aria-label="search">
<select id="method" aria-label="method"><option value="">all methods</option>{options}</select>
</div>
<p class="facts"><output id="count"></output></p>
<table id="models">
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>"""


def _cells(entry: Entry) -> str:
    link = quote(entry.link.replace("README.md", "index.html"))
    cells = [f'<td><a href="{escape(link)}">{escape(entry.cells["name"])}</a></td>']
    for column in COLUMNS[1:]:
        kind = ' class="number"' if column in NUMBERS else ""
        cells.append(f'<td{kind} data-label="{escape(column)}">{escape(entry.cells.get(column, ""))}</td>')
    return "".join(cells)


def card_body(card: ModelCard) -> str:
    """Return a card as HTML, with license, base model and data sets from its metadata."""
    data = card.data
    shown = {"license": [data.get("license")], "base model": [data.get("base_model")]}
    shown["data"] = data.get("datasets") or [None]
    facts = [f"{name}: {', '.join(values)}" for name, values in shown.items() if values[0]]
    return f"""{scrolling(MARKDOWN.render(card.text))}
<p class="facts">{escape(" · ".join(facts))}</p>"""
