"""The static website of the cards is complete, loads no external files, and sorts in a real browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import ModelCard

from csezoo.training.cards.index import COLUMNS, write_cards
from csezoo.training.cards.website import card_body, write_website
from csezoo.training.cli.parser import main
from csezoo.training.recipes import recipe_names

ROOT = Path(__file__).parents[3]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """The links of a page, the files it loads, and the rows of its tables."""

    def __init__(self, path: Path | str):
        super().__init__()
        self.links, self.loads, self.rows = [], [], []
        self.feed(path.read_text(encoding="utf-8") if isinstance(path, Path) else path)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "a":
            self.links.append(attributes["href"])
        elif tag == "tr":
            self.rows.append([])
        elif tag == "td" and self.rows:
            self.rows[-1].append("")
        self.loads += [attributes[key] for key in ("src", "srcset", "data") if key in attributes]
        self.loads += [attributes["href"]] if tag == "link" else []

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The website of the committed cards, with a picture added to one of them."""
    cards, directory = tmp_path_factory.mktemp("cards") / "model_cards", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "model_cards", cards)
    shutil.copy(ROOT / "training" / "cards" / "ideas" / "simcse.svg", cards / "simcse-minilm" / "similarities.png")
    write_website(cards, write_cards(cards), directory)
    return directory


def test_every_recipe_is_in_the_table_and_has_a_page(site):
    names = {row[0] for row in Page(site / "index.html").rows if row}
    assert set(recipe_names()) <= names
    assert {"simcse-minilm", "minilm-mlm, cls"} <= names
    assert all((site / name / "index.html").is_file() for name in recipe_names())


def test_every_linked_page_and_picture_exists(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(recipe_names())
    for page in pages:
        content = Page(page)
        for target in [*content.links, *content.loads]:
            if not urlsplit(target).scheme:
                assert (page.parent / target).is_file(), f"{page} links {target}"
    assert "similarities.png" in Page(site / "simcse-minilm" / "index.html").loads


def test_no_external_file_is_loaded(site):
    for page in site.rglob("*.html"):
        assert not any(urlsplit(target).scheme or target.startswith("//") for target in Page(page).loads)
    for file in (*site.rglob("*.css"), *site.rglob("*.js")):
        assert not re.search(r"https?:|url\(|@import|fetch\(|import\(", file.read_text(encoding="utf-8"))
    for file in site.rglob("*.svg"):  # the one URL is the name of the format
        assert re.findall(r"https?://[^\"]+", file.read_text(encoding="utf-8")) == ["http://www.w3.org/2000/svg"]


def test_html_in_a_card_is_shown_as_text():
    card = ModelCard("---\nlicense: <b>mit</b>\n---\n\n# <script>alert(1)</script>\n\n[x](javascript:alert)\n")
    body = card_body(card)
    assert "&lt;script&gt;" in body and "&lt;b&gt;mit" in body
    assert "<script" not in body and 'href="javascript' not in body


def test_the_site_does_not_overwrite_the_cards(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["cards", "--out", str(tmp_path), "--html", str(tmp_path)])
    assert "is the directory of the cards; give another one" in capsys.readouterr().err


@pytest.fixture
def shown(site):
    """Returns the visible rows of the table as a browser shows them, after some JavaScript."""
    if BROWSER is None:
        pytest.skip("BROWSER NOT TESTED: no chromium or google-chrome here")

    def names(state="", then=""):
        page = site / "tested.html"
        text = (site / "index.html").read_text(encoding="utf-8")
        page.write_text(text.replace("</body>", f'<script type="module">{then}</script></body>'), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        done = subprocess.run(
            [BROWSER, *options, f"{page.as_uri()}#{state}"], capture_output=True, text=True, timeout=120
        )
        page.unlink()
        body = re.sub(r"<tr hidden.*?</tr>", "", done.stdout, flags=re.DOTALL)
        return [row for row in Page(body).rows if row]

    return names


def test_a_click_sorts_by_number_and_a_second_one_reverses_the_order(shown):
    column = COLUMNS.index("paper, STS")
    click = f"document.querySelectorAll('#models th button')[{column}].click();"
    up = [row[column] for row in shown(then=click)]
    numbers = [float(cell.split()[0]) for cell in up if cell]
    assert numbers == sorted(numbers) and len(numbers) > 30
    assert not any(up[len(numbers) :]), "rows without a number come last"
    down = [row[column] for row in shown(then=click * 2)]
    assert [float(cell.split()[0]) for cell in down if cell] == numbers[::-1]
    assert not any(down[len(numbers) :])


def test_search_and_filter_are_read_from_the_url(shown):
    rows = shown("search=roberta+large&method=promptbert")
    assert [row[0] for row in rows] == ["l2pcsr-prompt-roberta-large"]
