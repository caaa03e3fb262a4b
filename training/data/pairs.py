"""Files of sentence pairs to train on: neighbours in running text, back-translations, sentences with other words."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

from filelock import FileLock, Timeout

from ..errors import UserError
from ..files import flush, long_cells, report_full_disk

# A line of WordNet: offset, file, kind, the number of words as two hexadecimal digits, words with their ids.
WORDNET = re.compile(r"\d{8} \d\d [nvasr] ([\da-f]{2}) (.*)")
MARKED = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)  # a word and the marks around it
# After a mark that ends a sentence (and quotes or brackets), before the letter or digit that may begin one.
SENTENCE_END = re.compile(r"""(?<=[.!?])["'“”’»)\]]*\s+(?=["'“‘«„(\[]*(\w))""")


def neighbours(lines: Iterable[str], *, split: bool = True) -> Iterator[tuple[str, str]]:
    """Yield each sentence of running text with the one after it. A blank line ends a text: no pair crosses it.

    Args:
        split: split lines into sentences, after `.`, `!` or `?` before a capital letter or a digit. Otherwise each
            line is a sentence.

    References:
        Chuang et al. 2022 (DiffCSE), table 3: the discriminator reads the next sentence.

    Example:
        >>> list(neighbours(["A cat sits. A dog", "runs. It is old!", "", "New text."]))
        [('A cat sits.', 'A dog runs.'), ('A dog runs.', 'It is old!')]
    """
    for text in _texts(lines):
        sentences = _sentences(" ".join(text)) if split else text
        yield from zip(sentences, sentences[1:], strict=False)


def _texts(lines: Iterable[str]) -> Iterator[list[str]]:
    text: list[str] = []
    for line in lines:
        if line.strip():
            text.append(line.strip())
        elif text:
            yield text
            text = []
    if text:
        yield text


def _sentences(text: str) -> list[str]:
    ends = [end.end() for end in SENTENCE_END.finditer(text) if end[1].isupper() or end[1].isdigit()]
    return [text[start:end].rstrip() for start, end in zip([0, *ends], [*ends, None], strict=True)]


def read_thesaurus(path: Path) -> dict[str, list[str]]:
    """Read groups of synonyms, one group a line, separated by commas. Return each word's synonyms, in lower case.

    Lines of WordNet's `data.noun`, `data.verb`, `data.adj` and `data.adv` are understood too.

    Raises:
        UserError: the file has no group of two words.
    """
    synonyms: dict[str, dict[str, None]] = {}
    for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        if re.match(r"  \d+ ", line):  # of WordNet's licence, at the top of its files
            continue
        if wordnet := WORDNET.match(line):
            words = wordnet[2].split(" ")[: 2 * int(wordnet[1], 16) : 2]
            words = [re.sub(r"\(\w+\)$", "", word) for word in words]
        else:
            words = line.split(",")
        group = [word.strip().replace("_", " ").lower() for word in words if word.strip()]
        for word in group:
            synonyms.setdefault(word, {}).update(dict.fromkeys(other for other in group if other != word))
    found = {word: list(others) for word, others in synonyms.items() if others}
    if not found:
        raise UserError(f"thesaurus: {path} has no synonyms; write each group of them on a line, separated by commas")
    return found


def with_synonyms(sentence: str, synonyms: dict[str, list[str]], share: float, draw: Random) -> str:
    """Replace a share of the words by synonyms: of the n words that have some, ⌈share · n⌉ chosen at random.

    References:
        Wei and Zou 2019 (EDA), which PrdSimCSE and DiffAug compare with.

    Example:
        >>> with_synonyms("A cat is 'big'.", {"big": ["large"]}, 0.1, Random(0))
        "A cat is 'large'."
    """
    words = sentence.split(" ")
    # The marks around a word stay, unless the thesaurus has the word with them.
    parts = [("", word, "") if word.lower() in synonyms else MARKED.fullmatch(word).groups() for word in words]  # type: ignore[union-attr]
    places = [place for place, (_, word, _) in enumerate(parts) if word.lower() in synonyms]
    for place in draw.sample(places, math.ceil(share * len(places))):
        before, word, after = parts[place]
        other = draw.choice(synonyms[word.lower()])
        words[place] = before + (other.capitalize() if word[:1].isupper() else other) + after
    return " ".join(words)


def refuse_existing(to: Path) -> None:
    """Refuse to write over a file."""
    if to.exists():
        raise UserError(f"{to} exists; delete it or give another file")


def write_pairs(
    to: Path,
    header: tuple[str, str],
    batches: Callable[[int], Iterable[list[tuple[str, str]]]],
    *,
    decisive: object = None,
) -> int:
    """Write pairs to a CSV file. The pairs that an interrupted call has written are kept.

    Args:
        to: the file; until it is complete, it has another name, which ends in `.partial`.
        batches: returns the pairs from a number on, in batches; the same ones in every call.
        decisive: what the pairs depend on, as JSON can write it. A call with other ones keeps none of the pairs.

    Returns:
        The number of pairs.

    Raises:
        UserError: the file exists, or another process writes it.
    """
    file = to.with_name(f".{to.name}.lock")
    try:
        lock = FileLock(file).acquire(timeout=0)
    except Timeout:
        raise UserError(f"{to}: another process writes this file; wait for it, or give another file") from None
    try:
        with lock:
            refuse_existing(to)
            return _continue_pairs(to, header, batches, decisive)
    finally:
        file.unlink(missing_ok=True)  # whoever locks a new one finds the pairs, or what is written of them


def _continue_pairs(
    to: Path, header: tuple[str, str], batches: Callable[[int], Iterable[list[tuple[str, str]]]], decisive: object
) -> int:
    identity = sha256(json.dumps([header, decisive]).encode()).hexdigest()[:10]
    partial = to.with_name(f"{to.name}.{identity}.partial")
    rows = _rows(partial)[1:-1] if partial.is_file() else []  # without the header; the last one may be incomplete
    done = len(rows)
    with report_full_disk(to.parent):
        new = partial.with_suffix(".new")  # this call may be killed too: the pairs so far are in a file at all times
        new.write_text(_quoted([header, *rows]), encoding="utf-8", newline="")
        flush(new)
        new.replace(partial)
        with partial.open("a", encoding="utf-8", newline="") as file:
            for pairs in batches(done):
                file.write(_quoted(pairs))
                file.flush()
                done += len(pairs)
        flush(partial)
        partial.replace(to)
    return done


def _quoted(rows: Iterable[Iterable[str]]) -> str:
    """Return rows as CSV, with every cell in quotes: a carriage return in a text would end the row."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    return text.getvalue()


def _rows(partial: Path) -> list[list[str]]:
    with long_cells(), partial.open(encoding="utf-8", errors="replace", newline="") as file:  # may end in a character
        return [row for row in csv.reader(file) if len(row) == 2]
