"""Markdown as HTML of the website: HTML in it is shown as text, and links lead to pages of the website."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
# The Markdown file that a link to its directory shows.
INDEX = "README.md"


def local_image(self: RendererHTML, tokens: list, index: int, *rest: object) -> str:
    """Return a picture as HTML if it is a file of the website, else its description."""
    source = urlsplit(str(tokens[index].attrs["src"]))
    external = source.scheme or source.netloc
    return escape(tokens[index].content) if external else self.image(tokens, index, *rest)  # type: ignore[arg-type]


MARKDOWN.add_render_rule("image", local_image)


def render(tokens: list[Token], file: Path, places: dict[Path, Path]) -> str:
    """Return a Markdown file as HTML. Its links lead to pages of the website, or become plain text."""
    for token in tokens:
        if token.children:
            token.children = _relinked(token.children, file, places)
    html = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    html = html.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")  # a number stays on one line
    return html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def _relinked(children: list[Token], file: Path, places: dict[Path, Path]) -> list[Token]:
    kept, inside = [], True
    for token in children:
        if token.type == "link_open":
            target = on_website(str(token.attrs["href"]), file, places)
            inside = target is not None
            token.attrSet("href", target or "")
        if inside or token.type not in ("link_open", "link_close"):
            kept.append(token)
    return kept


def on_website(link: str, file: Path, places: dict[Path, Path]) -> str | None:
    """Return the target that a link of a Markdown file has on the website; `None` if the website does not have it.

    Args:
        places: the directories that the website is made from, each with its place in the website.
    """
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    target = Path(os.path.abspath(file.parent / unquote(parts.path)))
    target = target / INDEX if target.is_dir() else target
    page, here = _place(target, places), _place(file, places)
    if not (target.is_file() and page and here):  # such as a directory of data, which has no page
        return None
    return quote(os.path.relpath(page, here.parent)) + (f"#{parts.fragment}" if parts.fragment else "")


def _place(file: Path, places: dict[Path, Path]) -> Path | None:
    """Return the path in the website of a file of the repository."""
    for directory, place in places.items():
        if Path(os.path.abspath(file)).is_relative_to(os.path.abspath(directory)):
            return place / html_name(Path(os.path.relpath(file, directory)))
    return None


def html_name(path: Path) -> Path:
    """Return the path of the page that a Markdown file becomes; other files keep theirs."""
    if path.suffix != ".md":
        return path
    return path.with_name("index.html") if path.name == INDEX else path.with_suffix(".html")
