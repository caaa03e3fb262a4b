"""Commands that show recipes and results: recipes, models, table, cards."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import UserError
from .options import Command


def add_commands(command: Command) -> None:
    command("recipes", recipes, "list the recipes of the zoo", "csezoo recipes")
    added = command(
        "models",
        models,
        "list trained models, the authors' checkpoints and recipes with score, size and processor time per sentence",
        "csezoo models --method promptbert --backbone bert-base-uncased --max_bytes 450000000",
    )
    added.add_argument("--method", help="only models with this method or addition, such as diffcse or promptbert")
    added.add_argument("--backbone", help="only models of this base model, such as roberta-base")
    added.add_argument("--trained", action="store_true", default=None, help="only models that were trained here")
    added.add_argument("--max_bytes", type=int, metavar="N", help="only models whose weights have at most N bytes")
    place = "directory of the cards with results.csv (default: that of csezoo itself)"
    added.add_argument("--cards", metavar="DIR", help=place)
    added = command(
        "table",
        table,
        "print results files as one table, with the paper's numbers if a paper reports the recipe",
        "csezoo table model_cards/*/results.json --format latex",
    )
    files = "results.json of runs, or files written by evaluate --out and glue --out"
    added.add_argument("files", nargs="+", metavar="FILE", help=files)
    formats = "format of the table (default: markdown)"
    added.add_argument("--format", default="markdown", choices=("markdown", "latex", "csv"), help=formats)
    added = command(
        "cards",
        cards,
        "write the model card of every recipe and every measured run, and an index of them",
        "csezoo cards --out model_cards --html site --docs docs",
    )
    out = "directory of the cards, with the measured runs in it (default: model_cards)"
    added.add_argument("--out", default="model_cards", metavar="DIR", help=out)
    added.add_argument("--html", metavar="DIR", help="also write the cards as a static website to this directory")
    docs = "also put this directory of Markdown pages into the website; needs --html"
    added.add_argument("--docs", metavar="DIR", help=docs)


def recipes(options: argparse.Namespace) -> None:
    from ..recipes.keys import QUICKSTARTS
    from ..recipes.reading import read_values, recipe_files
    from ..tables import text_table

    rows = []
    for name, file in recipe_files().items():
        recipe = read_values(file)
        without = "trained on the spot" if name in QUICKSTARTS else "yours (--base_model)"
        rows.append([name, recipe["method"], recipe.get("base_model", without)])
    print(text_table(rows, left=range(3)))


def models(options: argparse.Namespace) -> None:
    from ..cards.listing import CARDS, format_models, list_models

    chosen = {key: vars(options)[key] for key in ("method", "backbone", "trained", "max_bytes")}
    found = list_models(**chosen, cards=options.cards or CARDS)
    if not found:
        raise UserError("no model fits; `csezoo models` without options lists all")
    print(format_models(found))


def table(options: argparse.Namespace) -> None:
    from ..cards.results_files import different_data, format_rows, read_rows

    print(format_rows([row for file in options.files for row in read_rows(file)], options.format))
    if columns := different_data(options.files):
        print(f"warning: not measured on the same data in all files: {', '.join(columns)}", file=sys.stderr)


def cards(options: argparse.Namespace) -> None:
    from ..cards.index import write_cards

    if options.docs and not options.html:
        raise UserError(f"docs: {options.docs} becomes a part of the website; give --html too")
    if options.html:  # before anything is written
        from ..cards.website.documentation import refuse_documentation, write_documentation
        from ..cards.website.pages import refuse_place, write_website

        refuse_place(Path(options.html), Path(options.out), *([Path(options.docs)] if options.docs else []))
        if options.docs:
            refuse_documentation(Path(options.docs))
    entries = write_cards(Path(options.out))
    print(f"{options.out}: {sum(entry.card is not None for entry in entries)} cards")
    if options.html:
        write_website(Path(options.out), entries, Path(options.html), docs=bool(options.docs))
        if options.docs:
            write_documentation(Path(options.docs), Path(options.out), Path(options.html))
        print(Path(options.html) / "index.html")
