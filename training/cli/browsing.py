"""Commands that show what there is: recipes, table, cards."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UserError
from .options import Command


def add_commands(command: Command) -> None:
    command("recipes", recipes, "list the recipes of the zoo", "csezoo recipes")
    added = command(
        "table",
        table,
        "put results files side by side, and beside the paper's numbers where a recipe has them",
        "csezoo table model_cards/*/results.json --format latex",
    )
    added.add_argument("files", nargs="+", help="results.json of runs, or what evaluate and glue --out wrote")
    added.add_argument("--format", default="markdown", choices=("markdown", "latex", "csv"))
    added = command(
        "cards",
        cards,
        "write the model cards of all recipes and measured runs, and their index",
        "csezoo cards --out model_cards --html site --docs docs",
    )
    added.add_argument(
        "--out", default="model_cards", metavar="DIR", help="the directory of the cards (model_cards); runs lie in it"
    )
    added.add_argument("--html", metavar="DIR", help="write them as a static site too")
    added.add_argument("--docs", metavar="DIR", help="a directory of Markdown pages: put them into the site too")


def recipes(options: argparse.Namespace) -> None:
    from ..recipes.reading import read_values, recipe_files

    for name, file in recipe_files().items():
        recipe = read_values(file)
        print(f"{name:<36} {recipe['method']:<10} {recipe.get('base_model') or 'trained on the spot'}")


def table(options: argparse.Namespace) -> None:
    from ..cards.tables import format_rows, read_rows

    print(format_rows([row for file in options.files for row in read_rows(file)], options.format))


def cards(options: argparse.Namespace) -> None:
    from ..cards.index import write_cards

    if options.docs and not options.html:
        raise UserError("docs: they are a part of the site, give --html too")
    made = write_cards(Path(options.out))
    print(f"{options.out}: {sum(entry.card is not None for entry in made)} cards")
    if options.html:
        from ..cards.website import write_website

        write_website(Path(options.out), made, Path(options.html), docs=bool(options.docs))
        if options.docs:
            from ..cards.documentation import write_documentation

            write_documentation(Path(options.docs), Path(options.out), Path(options.html))
        print(Path(options.html) / "index.html")
