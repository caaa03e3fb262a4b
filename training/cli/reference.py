"""Write the reference of keys and commands: `python -m csezoo.training.cli.reference docs/reference.md`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ..recipes import reference as recipe_keys
from ..tables import markdown_table
from .parser import build_parser


def filled(page: str) -> str:
    """Return the page with the current description of keys and commands between its marks."""
    keys = re.sub("^## ", "### ", recipe_keys(), flags=re.MULTILINE).strip()
    return fill(fill(page, "keys", keys), "commands", commands())


def commands() -> str:
    """Return every command with its example and its options as Markdown, read from the parser."""
    return "\n\n".join(section for name, parser in _commands(build_parser()) for section in _describe(name, parser))


def _commands(parser: argparse.ArgumentParser, prefix: str = "csezoo") -> list[tuple[str, argparse.ArgumentParser]]:
    """Return the name and the parser of each command; a command with sub-commands is replaced by these."""
    leaves = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, chosen in action.choices.items():
                deeper = _commands(chosen, f"{prefix} {name}")
                leaves += deeper or [(f"{prefix} {name}", chosen)]
    return leaves


def _describe(name: str, parser: argparse.ArgumentParser) -> list[str]:
    summary = str(parser.description)
    sections = [f"### {name}", f"{summary[0].upper()}{summary[1:]}."]
    if parser.epilog:
        sections.append(f"```\n{parser.epilog.removeprefix('example: ')}\n```")
    actions = sorted(parser._actions, key=lambda action: bool(action.option_strings))  # positional arguments first
    rows = [[_usage(action), _cell(action)] for action in actions if action.dest != "help"]
    return [*sections, markdown_table(["argument", "meaning"], *rows)] if rows else sections


def _usage(action: argparse.Action) -> str:
    name = action.metavar or "|".join(map(str, action.choices or [])) or action.dest.upper()
    names = name if isinstance(name, tuple) else (name,) * (2 if action.nargs == 2 else 1)
    values = " ".join(names)
    if action.nargs == "+":
        values = f"{values} ..."
    words = action.option_strings[:1] if action.nargs == 0 else [*action.option_strings[:1], values]
    return f"`{' '.join(words)}`"


def _cell(action: argparse.Action) -> str:
    required = "required" if action.option_strings and action.required else ""
    return "; ".join(filter(None, [action.help, required]))


def fill(page: str, mark: str, text: str) -> str:
    """Return a page with `text` between `<!-- mark -->` and `<!-- end of mark -->`.

    Example:
        >>> fill("a <!-- keys --> b <!-- end of keys --> c", "keys", "new")
        'a <!-- keys -->\\n\\nnew\\n\\n<!-- end of keys --> c'
    """
    start, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    return re.sub(f"{start}.*?{end}", lambda _: f"{start}\n\n{text}\n\n{end}", page, flags=re.DOTALL)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
