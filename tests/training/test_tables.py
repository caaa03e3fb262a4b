"""Names in results files stay texts in every format of a table."""

import pytest

from csezoo.training.cards.results_files import format_rows
from csezoo.training.cli.parser import main
from csezoo.training.files import write_json
from csezoo.training.tables import link

NUMBERS = {"a": "-0.5", "b": "70.00 ± 0.10", "c": "+inf"}


@pytest.mark.parametrize("start", ["=HYPERLINK(A1)", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r\n=1"])
def test_no_cell_of_a_csv_file_is_a_formula_and_numbers_stay_numbers(start):
    header, row = format_rows([(start, NUMBERS)], "csv").splitlines()
    assert header == "model,a,b,c"
    assert row == f"'{start.strip()},-0.5,70.00 ± 0.10,+inf"


def test_no_cell_is_a_command_in_latex():
    row = format_rows([(r"\input{/etc/passwd} $x^2$ ~ a_b & 5%", NUMBERS)], "latex").splitlines()[4]
    name = r"\textbackslash{}input\{/etc/passwd\} \$x\textasciicircum{}2\$ \textasciitilde{} a\_b \& 5\%"
    assert row == name + r" & -0.5 & 70.00 $\pm$ 0.10 & +inf \\"


def test_no_cell_is_a_link_a_picture_or_html_in_markdown():
    assert link("a]b (c) *d*", "a b") == r"[a\]b (c) \*d\*](a%20b)"
    row = format_rows([("![x](https://example.org/x.png) <b> `|` \\", {})]).splitlines()[2]
    assert row == r"| ![x]\(https://example.org/x.png) \<b> \`\|\` \\ |"


@pytest.mark.parametrize("kind", ["markdown", "latex", "csv"])
def test_a_table_has_no_control_characters_of_a_name(kind, tmp_path, capsys):
    report = {
        "model": "a\x1b]0;title\x07\n\u202eb",
        "results": [{"task": "T", "metric": "spearman", "value": 1.0, "rows": 1, "dataset": "d"}],
    }
    write_json(tmp_path / "results.json", report)
    main(["table", str(tmp_path / "results.json"), "--format", kind])
    shown = capsys.readouterr().out
    assert "a ]0;title b" in shown and not {"\x1b", "\x07", "\u202e"} & set(shown)
