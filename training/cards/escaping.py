"""Escape texts from recipes and results files for Markdown, CSV and LaTeX, so that they are only shown."""

from __future__ import annotations

import re

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?( ± \d+(\.\d+)?)?|inf|nan)")
# What LaTeX would take for a command.
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "_&%#${}"}
    | {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "±": r"$\pm$",
    }
)


def one_line_of(text: str) -> str:
    """Return a text on one line, without characters that control a terminal or the direction of writing."""
    return " ".join(CONTROLS.sub(" ", text).split())


def plain(text: str) -> str:
    r"""Return a text escaped for Markdown, so that nothing in it links to or loads anything.

    Example:
        >>> print(plain("a_b ![](https://example.org/x.png)"))
        a_b ![]\(https://example.org/x.png)
    """
    return re.sub(r"[\\`<]|(?<=\])\(", r"\\\g<0>", one_line_of(text))


def code(text: str) -> str:
    """Return a text as code in Markdown.

    Example:
        >>> print(code("a"), code("a `b`"))
        `a` `` a `b` ``
    """
    text = one_line_of(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"


def spreadsheet(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula.

    Example:
        >>> spreadsheet("=HYPERLINK(A1)"), spreadsheet("-0.5 ± 0.1")
        ("'=HYPERLINK(A1)", '-0.5 ± 0.1')
    """
    cell = one_line_of(cell)
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@") and not NUMBER.fullmatch(cell) else cell


def latex(cell: str) -> str:
    r"""Return a cell in which LaTeX finds no command.

    Example:
        >>> print(latex(r"\input{a_b} 70 ± 1"))
        \textbackslash{}input\{a\_b\} 70 $\pm$ 1
    """
    return one_line_of(cell).translate(LATEX)
