"""`csezoo cards --html --docs`: write the pages of the documentation into the static website of the cards."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it.token import Token

from ..errors import UserError, one_line
from ..files import refuse_links_out
from .website import DOCS, MARKDOWN, scrolling, write_page

INDEX = "README.md"


def write_documentation(docs: Path, cards: Path, directory: Path) -> None:
    """Write every page of the documentation into `docs/` of the website.

    Links to other pages and to cards become links to their HTML pages. Links to other files of the repository become
    plain text, because the website does not have these files.

    Args:
        docs: a directory of Markdown pages. `README.md` is the index: its links set the order of the navigation.
        cards: the directory of the cards.
        directory: the directory of the website, written by `write_website` before.

    Raises:
        UserError: `docs` has no index, or the website cannot be written.
    """
    check_documentation(docs)
    try:
        index = (docs / INDEX).read_text(encoding="utf-8")
        pages = [("Overview", INDEX), *re.findall(r"\[([^\]]+)\]\(([\w-]+\.md)\)", index)]
        shutil.copytree(docs, directory / DOCS, ignore=shutil.ignore_patterns("*.md"), dirs_exist_ok=True)
        for page in docs.glob("*.md"):
            text = re.sub(r"<!--.*?-->\n*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            tokens = MARKDOWN.parse(text)
            title = next(_headings(tokens))[1]
            body = f"{_navigation(pages, page.name)}\n<div>\n{_body(tokens, docs, cards)}\n</div>"
            place = directory / DOCS / _html(Path(page.name))
            write_page(place, f"csezoo: {title}", body, kind=' class="docs"', root="../", docs=True)
    except OSError as error:
        raise UserError(f"html: {directory} cannot be written ({one_line(error)})") from error


def check_documentation(docs: Path) -> None:
    """Refuse documentation without an index, and links that would put other files into the website.

    Raises:
        UserError: there is no index, or a link leads out of the directory.
    """
    if not (docs / INDEX).is_file():
        raise UserError(f"docs: {docs / INDEX} is missing")
    refuse_links_out(docs)


def _navigation(pages: list[tuple[str, str]], current: str) -> str:
    """Return links to all pages, each a title and a file name."""
    links = []
    for title, name in pages:
        here = ' aria-current="page"' if name == current else ""
        links.append(f'<a href="{_html(Path(name))}"{here}>{escape(title)}</a>')
    return f'<nav class="pages" aria-label="pages">{"".join(links)}</nav>'


def _body(tokens: list[Token], docs: Path, cards: Path) -> str:
    """Return a page as HTML, with an id for every heading and with the links of the website."""
    for heading, title in _headings(tokens):
        heading.attrSet("id", re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))  # the ids that GitHub uses
    for token in tokens:
        if token.children:
            token.children = _relinked(token.children, docs, cards)
    return scrolling(MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}))


def _headings(tokens: list[Token]) -> Iterator[tuple[Token, str]]:
    following = zip(tokens, tokens[1:], strict=False)
    return ((token, after.content) for token, after in following if token.type == "heading_open")


def _relinked(children: list[Token], docs: Path, cards: Path) -> list[Token]:
    kept, inside = [], True
    for token in children:
        if token.type == "link_open":
            target = _on_site(str(token.attrs["href"]), docs, cards)
            inside = target is not None
            token.attrSet("href", target or "")
        if inside or token.type not in ("link_open", "link_close"):
            kept.append(token)
    return kept


def _on_site(link: str, docs: Path, cards: Path) -> str | None:
    """Return the target of a link on the website, relative to `docs/`; `None` if the website does not have it."""
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    file = Path(os.path.abspath(docs / parts.path))
    file = file / INDEX if file.is_dir() else file
    if not file.is_file():  # such as a directory of data, which has no page
        return None
    for root, place in ((docs, Path(DOCS)), (cards, Path())):
        if file.is_relative_to(os.path.abspath(root)):
            target = place / file.relative_to(os.path.abspath(root))
            fragment = f"#{parts.fragment}" if parts.fragment else ""
            return f"{os.path.relpath(_html(target), DOCS)}{fragment}"
    return None


def _html(path: Path) -> Path:
    if path.suffix != ".md":
        return path
    return path.with_name("index.html") if path.name == INDEX else path.with_suffix(".html")
