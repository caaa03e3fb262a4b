"""Tables as text: aligned for a terminal, and in Markdown, LaTeX and CSV, where a text is only ever shown."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Collection, Iterable, Sequence
from urllib.parse import quote

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?( ± \d+(\.\d+)?)?( \(\d+\))?|inf|nan)")
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


def link(text: str, target: str) -> str:
    r"""Return a link in Markdown.

    Example:
        >>> print(link("a_b [c", "a b/README.md"))
        [a\_b \[c](a%20b/README.md)
    """
    shown = re.sub(r"[*_&[\]]", r"\\\g<0>", plain(text))
    return f"[{shown}]({quote(target)})"


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
        >>> spreadsheet("=HYPERLINK(A1)"), spreadsheet("-0.5 ± 0.1 (3)")
        ("'=HYPERLINK(A1)", '-0.5 ± 0.1 (3)')
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


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return the mean of values as text, with their standard deviation if there are several.

    Example:
        >>> mean_and_deviation([70.0]), mean_and_deviation([70.0, 71.0])
        ('70.00', '70.50 ± 0.71')
    """
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def text_table(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return a table for a terminal: numbers end in one line.

    Args:
        rows: the header is one of them.
        left: the columns of texts, which begin in one line.

    Example:
        >>> print(text_table([["model", "STS12"], ["a", "70.00"]]))
        model  STS12
        a      70.00
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{'<' if place in left else '>'}{widths[place]}}" for place, cell in enumerate(row)).rstrip()
        for row in rows
    )


def markdown_table(header: Sequence[str], *rows: Sequence[str]) -> str:
    r"""Return a table in Markdown. A bar in a cell is escaped.

    Example:
        >>> print(markdown_table(["model", "STS12"], ["a|b", "70.00"]))
        | model | STS12 |
        |---|---|
        | a\|b | 70.00 |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def latex_table(header: Sequence[str], *rows: Sequence[str]) -> str:
    """Return a table in LaTeX, as the package `booktabs` draws it."""
    lines = [" & ".join(map(latex, row)) + r" \\" for row in (header, *rows)]
    frame = [r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    return "\n".join([*frame, r"\bottomrule", r"\end{tabular}"])


def csv_table(header: Sequence[object], *rows: Iterable[object]) -> str:
    """Return a table in CSV. A text in it is no formula."""
    out = io.StringIO()
    safe = ([spreadsheet(cell) if isinstance(cell, str) else cell for cell in row] for row in (header, *rows))
    csv.writer(out, lineterminator="\n").writerows(safe)
    return out.getvalue()
