"""The static website of the cards is complete, loads no external files, and sorts in a real browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from csezoo.training.cards.index import write_cards
from csezoo.training.cards.listing import COLUMNS, LOADABLE, STATUSES
from csezoo.training.cards.website.documentation import write_documentation
from csezoo.training.cards.website.pages import card_parts, write_page, write_website
from csezoo.training.cli.parser import main
from csezoo.training.files import read_json, write_json
from csezoo.training.recipes import recipe_names
from csezoo.training.recipes.released import released

ROOT = Path(__file__).parents[3]
SCORE = COLUMNS.index("STS average")
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


@pytest.fixture
def body(tmp_path):
    """A function that returns what the page of a card has below the navigation."""

    def body(card, file=Path("run/README.md"), places=MappingProxyType({})):
        write_page(tmp_path / "page.html", title="", **card_parts(card, file, places))
        return (tmp_path / "page.html").read_text(encoding="utf-8").partition("<main")[2]

    return body


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The website of the committed cards, with a picture added to one of them, and of the documentation."""
    cards, directory = tmp_path_factory.mktemp("cards") / "model_cards", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "model_cards", cards)
    shutil.copy(
        ROOT / "modeling" / "methods" / "simcse" / "cards" / "simcse.svg", cards / "simcse-minilm" / "similarities.png"
    )
    shutil.copytree(ROOT / "docs", cards.parent / "docs")
    write_website(cards, write_cards(cards), directory, docs=True)
    write_documentation(cards.parent / "docs", cards, directory)
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
                path, _, anchor = target.partition("#")
                file = page.parent / path if path else page
                assert file.is_file(), f"{page} links {target}"
                assert not anchor or f'id="{anchor}"' in file.read_text(encoding="utf-8"), f"{page} links {target}"
    assert "similarities.png" in Page(site / "simcse-minilm" / "index.html").loads


def test_every_page_of_the_documentation_links_all_others(site):
    pages = {path.with_suffix(".html").name.replace("README", "index") for path in (ROOT / "docs").glob("*.md")}
    assert {page.name for page in (site / "docs").glob("*.html")} == pages
    for page in pages:
        assert pages <= set(Page(site / "docs" / page).links)
    assert "docs/index.html" in Page(site / "index.html").links
    assert "../docs/index.html" in Page(site / "simcse-minilm" / "index.html").links


def test_links_of_the_documentation_lead_to_pages_of_the_website(tmp_path):
    for name in ("docs", "cards/run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "docs" / "README.md").write_text("# Overview\n\n[A page](page.md)\n", encoding="utf-8")
    (tmp_path / "docs" / "data").mkdir()
    (tmp_path / "cards" / "run" / "README.md").touch()
    links = (
        "[up](README.md) [run](../cards/run) [heading](page.md#two-words) [web](https://example.org) [code](../x.py)"
        " [a directory without a page](data)"
    )
    (tmp_path / "docs" / "page.md").write_text(
        f"# A page\n\n<!-- a mark -->\n\n## Two words\n\n{links}\n", encoding="utf-8"
    )
    write_documentation(tmp_path / "docs", tmp_path / "cards", tmp_path / "site")
    text = (tmp_path / "site" / "docs" / "page.html").read_text(encoding="utf-8")
    for link in ("index.html", "../run/index.html", "page.html#two-words", "https://example.org"):
        assert f'href="{link}"' in text
    assert "a directory without a page" in text and 'href="data' not in text
    assert "x.py" not in text and " code" in text and "a mark" not in text
    assert '<h2 id="two-words">' in text


def test_a_link_of_a_card_leads_to_the_page_of_another_card_or_is_text(body, tmp_path):
    for name in ("first", "second", "a run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").touch()
    card = ModelCard(
        "---\nlicense: mit\n---\n\n[second](../second/README.md) [run](../a%20run/README.md)"
        " [lost](../third/README.md) [out](../..)\n"
    )
    body = body(card, tmp_path / "first" / "README.md", {tmp_path: Path()})
    assert Page(body).links == ["../second/index.html", "../a%20run/index.html"]
    assert "lost out" in body


def test_a_page_that_cannot_be_read_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/README.md").write_text("# Overview\n", encoding="utf-8")
    Path("docs/latin.md").write_bytes(b"# Caf\xe9\n")
    with pytest.raises(SystemExit, match="2"):
        main(["cards", "--out", "cards", "--html", "site", "--docs", "docs"])
    assert capsys.readouterr().err.startswith("error: docs: docs/latin.md cannot be read ('utf-8'")
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


def test_a_page_without_a_heading_is_titled_by_its_file(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("README", "page"):
        (tmp_path / "docs" / f"{name}.md").write_text("Text alone.\n", encoding="utf-8")
    write_documentation(tmp_path / "docs", tmp_path / "cards", tmp_path / "site")
    assert "<title>csezoo: page</title>" in (tmp_path / "site" / "docs" / "page.html").read_text(encoding="utf-8")


def test_no_external_file_is_loaded(site):
    for page in site.rglob("*.html"):
        assert not any(urlsplit(target).scheme or target.startswith("//") for target in Page(page).loads)
    for file in (*site.rglob("*.css"), *site.rglob("*.js")):
        assert not re.search(r"https?:|url\(|@import|fetch\(|import\(", file.read_text(encoding="utf-8"))
    for file in site.rglob("*.svg"):  # the one URL is the name of the format
        assert re.findall(r"https?://[^\"]+", file.read_text(encoding="utf-8")) == ["http://www.w3.org/2000/svg"]


def test_html_in_a_card_is_shown_as_text(body):
    body = body(ModelCard("---\nlicense: <b>mit</b>\n---\n\n# <script>alert(1)</script>\n\n[x](javascript:alert)\n"))
    assert "&lt;script&gt;" in body and "&lt;b&gt;mit" in body
    assert "<script" not in body and 'href="javascript' not in body


@pytest.fixture
def hostile(tmp_path):
    """A directory of cards with one run. Its names try to run code, to load pictures and to leave a table."""
    name = "javascript:alert(1)"
    cards, picture = tmp_path / "cards", "![x](https://example.org/x.png)"
    shutil.copytree(ROOT / "model_cards" / "simcse-minilm", cards / name)
    recipe = yaml.safe_load((cards / name / "recipe.yaml").read_text(encoding="utf-8"))
    recipe |= {"name": picture, "train_file": f"{picture}`\n```\n{picture}.txt", "recipe": f"`{picture}"}
    (cards / name / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    report = read_json(cards / name / "results.json")
    report["results"][0]["dataset"] = f"<img src=//example.org/x.png>|{picture}"
    report["machine"] = {"device": picture}
    write_json(cards / name / "results.json", report)
    (cards / name / "page.html").write_text("<script>alert(1)</script>", encoding="utf-8")
    (cards / name / "simcse.svg").write_text("<svg><script>alert(1)</script></svg>", encoding="utf-8")
    return cards


def test_names_of_a_run_stay_texts_in_cards_and_website(hostile, tmp_path):
    write_website(hostile, write_cards(hostile), tmp_path / "site")
    pages = [Page(page) for page in (tmp_path / "site").rglob("*.html")]
    pages_of_the_zoo = len(recipe_names()) + len(released())
    assert len(pages) == 1 + pages_of_the_zoo + 1 - ("simcse-minilm" in recipe_names())
    for page in pages:
        assert not any(urlsplit(target).scheme or target.startswith("//") for target in page.loads)
        assert not any(target.startswith("javascript:") for target in page.links)
    card = ModelCard.load(hostile / "javascript:alert(1)" / "README.md").text
    assert "csezoo.training.train recipe.yaml" in card, "the name of an unknown recipe is not part of a command"
    for written in (card, (hostile / "README.md").read_text(encoding="utf-8")):
        loads = Page(MarkdownIt("commonmark").enable("table").render(written)).loads  # here with raw HTML
        assert not any("example.org" in target for target in loads)
    assert not list((tmp_path / "site").glob("java*/page.html")) + list((tmp_path / "site").glob("java*/*.svg"))


def test_a_picture_from_elsewhere_is_its_description(body):
    card = ModelCard("---\nlicense: mit\n---\n\n![a <b>](https://example.org/x.png) ![c](//example.org) ![d](d.png)\n")
    body = body(card)
    assert Page(body).loads == ["d.png"]
    assert "a &lt;b&gt; c " in body


@pytest.mark.parametrize("place", ["cards/run/notes.png", "cards/run/README.md", "docs/page.md"])
def test_a_link_out_of_cards_or_documentation_is_refused_before_anything_is_written(place, tmp_path, capsys):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret", encoding="utf-8")
    for name in ("cards/run", "docs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "docs" / "README.md").write_text("# Overview\n", encoding="utf-8")
    (tmp_path / place).symlink_to(secret)
    with pytest.raises(SystemExit, match="2"):
        main(["cards", "--out", f"{tmp_path}/cards", "--html", f"{tmp_path}/site", "--docs", f"{tmp_path}/docs"])
    assert f"{place} is a link to a place outside of" in capsys.readouterr().err
    assert not (tmp_path / "site").exists() and not (tmp_path / "cards" / "README.md").exists()
    assert secret.read_text(encoding="utf-8") == "secret"


@pytest.mark.parametrize("place", [".", "site", "site/deep"])
def test_a_website_in_the_cards_or_in_the_documentation_is_refused_before_anything_is_written(place, tmp_path, capsys):
    for source in ("cards", "docs"):
        (tmp_path / source).mkdir()
        (tmp_path / "docs" / "README.md").write_text("# Overview\n", encoding="utf-8") if source == "docs" else None
        options = ["--html", f"{tmp_path}/{source}/{place}", "--docs", f"{tmp_path}/docs"]
        with pytest.raises(SystemExit, match="2"):
            main(["cards", "--out", f"{tmp_path}/cards", *(options if source == "docs" else options[:2])])
        assert f"is in {tmp_path}/{source}, which the website is made from" in capsys.readouterr().err
        assert not list((tmp_path / "cards").iterdir())


@pytest.fixture
def dumped(site):
    """Returns the page of the table as a browser has it, after some JavaScript."""
    if BROWSER is None:
        pytest.skip("BROWSER NOT TESTED: no chromium or google-chrome here")

    def dumped(state="", then=""):
        page = site / "tested.html"
        text = (site / "index.html").read_text(encoding="utf-8")
        page.write_text(text.replace("</body>", f'<script type="module">{then}</script></body>'), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        done = subprocess.run(
            [BROWSER, *options, f"{page.as_uri()}#{state}"], capture_output=True, text=True, timeout=120
        )
        page.unlink()
        return done.stdout

    return dumped


@pytest.fixture
def shown(dumped):
    """Returns the visible rows of the table as a browser shows them, after some JavaScript."""

    def shown(state="", then=""):
        body = re.sub(r"<tr[^>]* hidden.*?</tr>", "", dumped(state, then), flags=re.DOTALL)
        return [row for row in Page(body).rows if row]

    return shown


def test_the_table_opens_with_the_trained_models_the_best_first(shown):
    rows = shown()
    statuses = [row[COLUMNS.index("status")] for row in rows]
    assert statuses == sorted(statuses, key=STATUSES.index) and set(statuses) == set(STATUSES)
    for status in STATUSES:
        scores = [row[SCORE] for row in rows if row[COLUMNS.index("status")] == status and "untrained" not in row[1]]
        numbers = [float(score.split()[0]) for score in scores if score]
        assert numbers == sorted(numbers, reverse=True) and not any(scores[len(numbers) :])


@pytest.mark.parametrize("name, best_first", [("STS average", True), ("STS12", True), ("CPU ms", False)])
def test_a_click_sorts_the_best_first_and_a_second_one_reverses_the_order(site, shown, name, best_first):
    """A high score is good, and a high cost is not."""
    heads = re.findall(r'<button type="button">(.*?)</button>', (site / "index.html").read_text(encoding="utf-8"))
    column = heads.index(name)
    click = f"document.querySelectorAll('#models th button')[{column}].click();"
    once = [row[column] for row in shown("tasks=STS12", click)]
    numbers = [float(cell.split()[0]) for cell in once if cell]
    assert numbers == sorted(numbers, reverse=best_first) and len(numbers) > 30
    assert not any(once[len(numbers) :]), "rows without a number come last"
    twice = [row[column] for row in shown("tasks=STS12", click * 2)]
    assert [float(cell.split()[0]) for cell in twice if cell] == numbers[::-1]
    assert not any(twice[len(numbers) :])


def test_a_task_has_a_column_on_demand(dumped):
    def visible(state):
        heads = re.findall(r'<th scope="col"([^>]*)><button type="button">(.*?)</button>', dumped(state))
        return [name for attributes, name in heads if "hidden" not in attributes]

    assert visible("") == list(COLUMNS)
    assert visible("tasks=STS12,SICK-R") == [*COLUMNS, "STS12", "SICK-R"]


def test_the_plot_has_a_point_for_every_visible_model_with_score_and_cost(dumped):
    cost = COLUMNS.index("CPU ms")

    def with_both(page):
        body = re.sub(r"<tr[^>]* hidden.*?</tr>", "", page, flags=re.DOTALL)
        return {row[0] for row in Page(body).rows if row and row[SCORE] and row[cost]}

    for state in ("", "method=diffcse"):
        page = dumped(state)
        titles = re.findall(r"<title>(.+?): [\d.]+(?: ± [\d.]+)?, [\d.]+ CPU ms</title>", page)
        assert sorted(titles) == sorted(with_both(page)) and titles
        assert set(re.findall(r'<a href="[^"]+" class="(.*?)"', page)) <= {f"kind-{n}" for n in range(len(STATUSES))}
    assert len(titles) < 20
    adapters = [row[0] for row in Page(dumped()).rows if row and row[COLUMNS.index("status")] == LOADABLE]
    here = {file.parent.name for file in (ROOT / "model_cards").glob("*/adapter_config.json")}
    assert set(adapters) == here <= with_both(dumped()) and here


def test_search_and_filter_are_read_from_the_url(shown):
    rows = shown("search=large&backbone=roberta-large&method=promptbert")
    assert [row[0] for row in rows] == ["l2pcsr-prompt-roberta-large", "promptbert-sup-roberta-large"]


def test_search_reads_the_visible_columns(shown):
    report = read_json(ROOT / "model_cards" / "simcse-minilm" / "results.json")
    score = next(f"{entry['mean']:.2f}" for entry in report["summary"] if entry["task"] == "STS12")
    assert not shown(f"search={score}")
    assert [row[0] for row in shown(f"search={score}&tasks=STS12")] == ["simcse-minilm"]
