"""One task of the transfer suite."""

import pytest


@pytest.fixture
def cr(tmp_path):
    """A directory with CR's row counts: 2,407 positive and 1,368 negative lines."""
    folder = tmp_path / "CR"
    folder.mkdir()
    for file, rows, word in (("custrev.pos", 2407, "aa"), ("custrev.neg", 1368, "oo")):
        lines = [f"{word}  b{'a' * (n % 3)} {'e ' * (n % 4)}\xe9" for n in range(rows)]
        (folder / file).write_text("\n".join(lines) + "\n", encoding="latin-1")
    return tmp_path
