"""`csezoo cards --html --docs`: write the pages of the documentation into the static website of the cards."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...errors import UserError, one_line, writing
from ...files import refuse_links_out
from .markdown import INDEX, MARKDOWN, html_name, render
from .pages import DOCS, write_page


def write_documentation(docs: Path, cards: Path, directory: Path) -> None:
    """Write every page of the documentation into `docs/` of the website.

    Links to other pages and to cards become links to their HTML pages. Links to other files of the repository become
    plain text, because the website does not have these files.
    """
    with writing("html", directory):
        index = (docs / INDEX).read_text(encoding="utf-8")
        links = [("Overview", INDEX), *re.findall(r"\[([^\]]+)\]\(([\w-]+\.md)\)", index)]
        pages = [(title, html_name(Path(name)).name) for title, name in links]
        shutil.copytree(docs, directory / DOCS, ignore=shutil.ignore_patterns("*.md"), dirs_exist_ok=True)
        for page in docs.glob("*.md"):
            text = re.sub(r"<!--.*?-->\n*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            tokens = MARKDOWN.parse(text)
            headings = [(token, after.content) for token, after in pairwise(tokens) if token.type == "heading_open"]
            title = headings[0][1] if headings else page.stem
            for heading, shown in headings:  # the ids that they have on GitHub
                heading.attrSet("id", re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-"))
            html = Markup(render(tokens, page, {docs: Path(DOCS), cards: Path()}))
            name = html_name(Path(page.name)).name
            about: dict[str, Any] = {"title": f"csezoo: {title}", "kind": f"docs {page.stem}", "root": "../"}
            write_page(directory / DOCS / name, html=html, pages=pages, current=name, docs=True, **about)


def refuse_documentation(docs: Path) -> None:
    """Refuse documentation without an index, with links out of its directory, or with unreadable pages."""
    if not (docs / INDEX).is_file():
        raise UserError(f"docs: {docs / INDEX} is missing")
    refuse_links_out(docs)
    for page in docs.glob("*.md"):
        try:
            page.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"docs: {page} cannot be read ({one_line(error)}); a page is text in UTF-8") from error
