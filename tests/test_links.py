"""No dead links in the project's pages: what a link names is there, the heading too."""

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()


def tokens(page: Path):
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)  # the Hub's metadata
    return MarkdownIt("commonmark").enable("table").parse(text)


def links(page: Path) -> list[str]:
    """Targets of all links and images."""
    inline = [child for token in tokens(page) for child in token.children or []]
    return [
        str(child.attrs.get("href", child.attrs.get("src"))) for child in inline if {"href", "src"} & set(child.attrs)
    ]


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may say after its #."""
    made = tokens(page)
    titles = [after.content for token, after in zip(made, made[1:], strict=False) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    page = ROOT / name
    for link in links(page):
        target = urlsplit(link)
        if target.scheme:
            assert target.scheme == "https" and "." in target.netloc, link  # who answers there is not asked
            continue
        file = page.parent / unquote(target.path) if target.path else page
        assert file.exists(), link
        assert file.resolve().is_relative_to(ROOT), link
        if target.fragment:
            assert target.fragment in anchors(file), link


def test_there_are_links_to_check():
    found = {link for name in PAGES for link in links(ROOT / name)}
    assert "evaluation.md#suites" in found and "../ideas/simcse.svg" in found
