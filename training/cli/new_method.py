"""The command that begins a method: new-method."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from keyword import iskeyword
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import UserError
from ..files import replace_file
from .options import Command

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = Path(__file__).with_name("method_template")
# The seams, each with the key of its example, which is SimCSE at 0.
SEAMS = {"data": "omission", "views": "mixing", "objective": "noise", "auxiliary": "length_weight"}
# `#[objective auxiliary` opens lines of the template that are for one of these seams, and `#]` ends them.
MARK = re.compile(r"(?:#|<!--)(?:\[([a-z ]+)|\])(?:-->)?")


def add_commands(command: Command) -> None:
    added = command(
        "new-method",
        new_method,
        "begin a method in a clone of csezoo: a folder that trains and passes all tests, with an example of each seam",
        "csezoo new-method MixCSE --seams objective",
    )
    added.add_argument("name", metavar="NAME", help="an identifier; the folder and --method have it in lower case")
    seams = f"what it changes, separated by commas: {', '.join(SEAMS)}"
    added.add_argument("--seams", required=True, metavar="SEAM[,SEAM]", help=seams)


def new_method(options: argparse.Namespace) -> None:
    name, seams = options.name.lower(), [seam for seam in SEAMS if seam in options.seams.split(",")]
    if not (ROOT / "tests" / "methods").is_dir():
        raise UserError("new-method: this is no clone of csezoo; clone it, and install it with pip install -e .")
    here = next((place for place in (Path.cwd(), *Path.cwd().parents) if (place / "tests" / "methods").is_dir()), ROOT)
    if here != ROOT:
        raise UserError(f"new-method: {here} is a clone, but csezoo is installed from {ROOT}; pip install -e {here}")
    if unknown := set(options.seams.split(",")) - SEAMS.keys():
        raise UserError(f"seams: {min(unknown)!r} must be one of {', '.join(SEAMS)}")
    files = new_files(options.name, seams)
    refuse_name(name, files)
    row = f"| {class_name(options.name)}: SAY WHAT IT DOES | `{name}-bert-base-uncased` |"
    write(ROOT / "modeling" / "methods" / name, files, row)
    print(f"modeling/methods/{name}/ is a method, trained by csezoo train simcse-bert-base-uncased --method {name}")
    cards = ["csezoo.training.cli", "cards", "--out", str(ROOT / "model_cards")]
    reference = ["csezoo.training.cli.reference", str(ROOT / "docs" / "reference.md")]
    for command in (cards, reference):  # each in a new process, which finds the new method
        if subprocess.run([sys.executable, "-m", *command]).returncode:
            raise UserError(f"{name} is written, but its cards are not; run python -m {shlex.join(command)}")
    print("Put your idea in place of the example, and your texts in place of those in capitals; see")
    print("docs/adding-a-method.md for the tests to run.")


def class_name(name: str) -> str:
    """Return the beginning of the names of classes.

    Example:
        >>> class_name("MixCSE"), class_name("hard_mixing")
        ('MixCSE', 'HardMixing')
    """
    return name if name != name.lower() else "".join(part.capitalize() for part in name.split("_"))


def refuse_name(name: str, files: Iterable[Path]) -> None:
    """Refuse a name that a new method cannot have."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or iskeyword(name):
        raise UserError(f"name: {name!r:.60} must be a letter and then letters, digits and _, and no word of Python")
    taken = [file for file in files if file.exists()]
    taken += [path for path in (ROOT / "modeling" / "methods").glob("*/cards/*.yaml") if path.stem == name]
    if taken or (ROOT / "modeling" / "methods" / name).exists():
        raise UserError(f"name: {name} exists{f' ({taken[0].relative_to(ROOT)})' if taken else ''}; give another one")
    if name in CONFIG_MAPPING_NAMES or name == "csezoo":
        raise UserError(f"name: {name} is a model type of transformers or of csezoo; give another one")


def only(text: str, seams: Iterable[str]) -> str:
    """Return a template without the lines of other seams, and without marks.

    Example:
        >>> only("a\\n#[views\\nb\\n#]\\n#[data views\\nc\\n#]\\n", ["data"])
        'a\\nc\\n'
    """
    lines, wanted = [], []
    for line in text.splitlines(keepends=True):
        if mark := MARK.fullmatch(line.strip()):
            if mark[1]:
                wanted.append(not set(seams).isdisjoint(mark[1].split()))
            else:
                wanted.pop()
        elif all(wanted):
            lines.append(line)
    return "".join(lines)


def new_files(title: str, seams: list[str]) -> dict[Path, str]:
    """Return the contents of a new method's files."""
    name = title.lower()
    folder = ROOT / "modeling" / "methods" / name
    places = {
        "__init__.py": folder / "__init__.py",
        "configuration.py": folder / "configuration.py",
        "model.py": folder / "model.py",
        "recipe.yaml": folder / "recipes" / f"{name}-bert-base-uncased.yaml",
        "card.yaml": folder / "cards" / f"{name}.yaml",
        "picture.svg": folder / "cards" / f"{name}.svg",
        "tested.py": ROOT / "tests" / "methods" / f"{name}.py",
        "test.py": ROOT / "tests" / "modeling" / f"test_{name}.py",
    }
    words = {
        "new_method": name,
        "NewMethod": class_name(title),
        "SEAMS": f'("{seams[0]}",)' if len(seams) == 1 else json.dumps(seams).replace("[", "(").replace("]", ")"),
        "NEUTRAL": json.dumps({SEAMS[seam]: 0.0 for seam in seams}),
    }
    contents = {}
    for template, place in places.items():
        text = only((TEMPLATE / f"{template}.txt").read_text(encoding="utf-8"), seams)
        contents[place] = re.sub("|".join(words), lambda found: words[found[0]], text)
    return contents


def write(folder: Path, files: dict[Path, str], row: str) -> None:
    """Write a new method and its row in the README: all of it, or nothing after an error or a signal."""
    readme = ROOT / "README.md"
    page = readme.read_text(encoding="utf-8")
    with TemporaryDirectory(prefix=".", dir=folder.parent) as hidden, ExitStack() as undo:
        for file, text in files.items():
            if folder in file.parents:
                file = hidden / file.relative_to(folder.parent)
                file.parent.mkdir(parents=True, exist_ok=True)
            undo.callback(file.unlink, missing_ok=True)
            replace_file(file, text)
        undo.callback(replace_file, readme, page)
        replace_file(readme, with_row(page, row))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        Path(hidden, folder.name).rename(folder)  # a method by being there
        undo.pop_all()


def with_row(page: str, row: str) -> str:
    """Return the README with another row at the end of the first table under "Methods and recipes".

    Example:
        >>> with_row("## Methods and recipes\\n\\nText.\\n\\n|a|b|\\n|---|---|\\n|1|2|\\n\\nText.\\n", "|3|4|")
        '## Methods and recipes\\n\\nText.\\n\\n|a|b|\\n|---|---|\\n|1|2|\\n|3|4|\\n\\nText.\\n'
    """
    table = re.search(r"^## Methods and recipes\n(?:[^|#\n].*\n|\n)*(?:\|.*\n)+", page, re.MULTILINE)
    if table is None:
        raise UserError('README.md: it has no table under "Methods and recipes"; restore it')
    return f"{page[: table.end()]}{row}\n{page[table.end() :]}"
