"""The STS tasks: pairs of sentences with gold scores, from the Hub or from a directory in SentEval's layout."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...errors import UserError, quoted
from ...files import long_cells
from ...hub import load_rows
from ..metrics.sts.sts import STS
from .names import DEV_TASK, RELEASED_PAIRS, SICKR_DEV_TASK, SUBSETS
from .senteval import (
    check_count,
    find_senteval,
    finite,
    numbered_lines,
    read_pair,
    read_sentences,
    read_subset,
    read_text,
    respaced,
)

# Looks up the vectors of sentences: `list[str] -> (n, d)`, float32.
Vectors = Callable[[list[str]], np.ndarray]

SICKR_SPLITS = {
    "SICK-R-train": "SICK_train.txt",
    SICKR_DEV_TASK: "SICK_trial.txt",
    "SICK-R": "SICK_test_annotated.txt",
}
# Both sides of the pairs of STS12 to STS16, 13,497 of which have no score, and of all splits of STS-B and SICK-R. The
# README of ConSERT's release names this number.
ALL_SENTENCES = 89_192
STSB_SPLITS = {"STSBenchmark-train": "sts-train.csv", DEV_TASK: "sts-dev.csv", "STSBenchmark": "sts-test.csv"}
# The revisions that MTEB pins. One split contains all pairs of a year (the "all" setting). MTEB's SICK-R is train,
# trial and test together; the papers use the 4,927 test pairs, which are therefore read from SentEval's archive.
HUB = {
    "STS12": ("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384", "test"),
    "STS13": ("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", "test"),
    "STS14": ("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", "test"),
    "STS15": ("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3", "test"),
    "STS16": ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", "test"),
    "STSBenchmark": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "test"),
    DEV_TASK: ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "validation"),
    "STSBenchmark-train": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "train"),
}


@dataclass
class PairTask:
    """Sentence pairs with gold scores."""

    name: str  # of the task
    pairs: list[tuple[str, str]]  # the two sentences of each pair
    scores: list[float]  # gold score of each pair, on the scale of the task
    # source, revision: the data set they were read from
    source: str
    revision: str | None = None
    metric: str = "spearman"  # `spearman` or `pearson`

    def sentences(self) -> set[str]:
        return {sentence for pair in self.pairs for sentence in pair}

    def part(self, name: str, rows: list[int]) -> PairTask:
        pairs, scores = [self.pairs[row] for row in rows], [self.scores[row] for row in rows]
        return replace(self, name=name, pairs=pairs, scores=scores)

    def similarities(self, vectors: Vectors) -> np.ndarray:
        """Return the cosine of each pair, `(n,)` in float64."""
        return cosines(*(vectors([pair[side] for pair in self.pairs]) for side in (0, 1)))

    def results(self, vectors: Vectors) -> list[dict]:
        """Return the correlation (× 100) of the cosine with the gold score over all pairs."""
        value = self.correlation(self.similarities(vectors))
        return [{"task": self.name, "metric": self.metric, "value": value, "similarity": "cosine"}]

    def correlation(self, similarities: np.ndarray) -> float:
        """Return the correlation (× 100) of the similarities `(n,)` with the gold score over all pairs."""
        scores = STS(keep_in_memory=True).compute(predictions=similarities, references=self.scores)
        value = scores[self.metric]
        if math.isnan(value):
            if len(set(self.scores)) == 1:
                raise UserError(f"{self.name}: all gold scores are equal; give pairs of different scores")
            if all(first == second for first, second in self.pairs):
                raise UserError(f"{self.name}: the two texts of each pair are equal; give pairs of different texts")
            raise UserError(
                f"{self.name}: all similarities are equal; the encoder returns one vector for every sentence"
            )
        return value

    def receipt(self) -> dict[str, object]:
        """Return what identifies the pairs (source, revision, rows, checksum), and that all are scored together."""
        digest = hashlib.sha256()
        for (first, second), score in zip(self.pairs, self.scores, strict=True):
            digest.update(f"{first}\t{second}\t{score:g}\n".encode())
        return {
            "dataset": self.source,
            "revision": self.revision,
            "rows": len(self.pairs),
            "sha256": digest.hexdigest(),
            "aggregation": "all",
        }


@dataclass
class OnPairs:
    """What is measured on the sentences of pairs, other than their scores."""

    pairs: PairTask

    measured: ClassVar[str]  # what it adds to the name of the pairs

    @property
    def name(self) -> str:
        return f"{self.pairs.name} {self.measured}"

    def sentences(self) -> set[str]:
        return self.pairs.sentences()

    def receipt(self) -> dict[str, object]:
        return self.pairs.receipt()


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of rows `(n, d)`, `(n,)` in float64.

    They are rounded, because rounding errors would put equal cosines in an order, and ties share their mean rank.
    """
    return np.round((unit_vectors(first) * unit_vectors(second)).sum(1), 12)


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length one in float64. A zero vector stays zero, so its cosine is 0, as in SentEval.

    Example:
        >>> unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]]))
        array([[0.6, 0.8],
               [0. , 0. ]])
    """
    vectors = vectors.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)


def load_task(name: str, data: str) -> PairTask:
    """Read a task.

    Args:
        name: one of `STS_TASKS`, `STSB_SPLITS` or `SICKR_SPLITS`.
        data: `hub`, or a directory in SentEval's layout.
    """
    task = from_hub(name, *HUB[name]) if data == "hub" and name in HUB else _from_files(name, data)
    return counted(task, RELEASED_PAIRS[name])


def counted(task: PairTask, expected: int) -> PairTask:
    """Return the task after checking that it has the released number of rows."""
    check_count(task.name, f"pairs in {task.source}", expected, len(task.pairs))
    return task


def from_hub(
    name: str, repository: str, revision: str, split: str, config: str | None = None, metric: str = "spearman"
) -> PairTask:
    """Read pairs from a data set on the Hub with the columns sentence1, sentence2, score."""
    local = "give a directory in SentEval's layout instead (--eval_data DIR in training, --data DIR in evaluation)"
    instead = f"{local}, or --eval_data none"
    rows = load_rows(name, repository, config, split=split, revision=revision, instead=instead)
    pairs = []
    for number, row in enumerate(rows, start=1):
        try:
            pairs.append((respaced(row["sentence1"]), respaced(row["sentence2"]), finite(row["score"])))
        except (AttributeError, TypeError, ValueError):
            raise UserError(
                f"{name}: {repository}, row {number} of {split}: expected a sentence pair with a score"
            ) from None
    return pair_task(name, pairs, repository, revision, metric)


def _from_files(name: str, data: str) -> PairTask:
    senteval = find_senteval(data)
    if name in SUBSETS:
        path = senteval.root / "STS" / f"{name}-en-test"
        rows = [row for subset in SUBSETS[name] for row in read_subset(path, subset)]
    elif name in SICKR_SPLITS:
        path = senteval.root / "SICK" / SICKR_SPLITS[name]
        rows = [read_pair(path, n, line, (1, 2, 3)) for n, line in numbered_lines(path) if n > 1]
    else:
        path = senteval.root / "STS" / "STSBenchmark" / STSB_SPLITS[name]
        rows = [read_pair(path, n, line, (5, 6, 4)) for n, line in numbered_lines(path)]
    return pair_task(name, rows, senteval.source(path), senteval.revision)


def load_all_sentences(data: str) -> list[str]:
    """Read both sentences of every pair of the seven STS data sets, all splits of them, with or without a score."""
    senteval = find_senteval(data)
    folders = {name: senteval.root / "STS" / f"{name}-en-test" for name in SUBSETS}
    sentences = [
        text for name, folder in folders.items() for one in SUBSETS[name] for text in read_sentences(folder, one)
    ]
    for name in (*STSB_SPLITS, *SICKR_SPLITS):
        sentences += [sentence for pair in _from_files(name, data).pairs for sentence in pair]
    check_count(senteval.name, "sentences of STS data sets", ALL_SENTENCES, len(sentences))
    return sentences


def pair_task(
    name: str, rows: list[tuple[str, str, float]], source: str, revision: str | None = None, metric: str = "spearman"
) -> PairTask:
    """Make a task from rows of first sentence, second sentence, score."""
    return PairTask(name, [row[:2] for row in rows], [row[2] for row in rows], source, revision, metric)


def split_by_length(task: PairTask, words: int = 8) -> list[PairTask]:
    """Split a task into pairs whose shorter sentence has at most `words` words, and the others (PrdSimCSE, table 11).

    Example:
        >>> task = PairTask("toy", [("a b c", "d"), ("a b", "c d e")], [1.0, 2.0], "example")
        >>> [(part.name, part.pairs) for part in split_by_length(task, 1)]
        [('toy, to 1 words', [('a b c', 'd')]), ('toy, over 1 words', [('a b', 'c d e')])]
    """
    shorter = [min(len(sentence.split()) for sentence in pair) for pair in task.pairs]
    short = [row for row, length in enumerate(shorter) if length <= words]
    long = [row for row, length in enumerate(shorter) if length > words]
    return [task.part(f"{task.name}, {name} {words} words", rows) for name, rows in (("to", short), ("over", long))]


def load_lengths(data: str) -> list[PairTask]:
    """Read SICK-R: all pairs, and the two parts of a split by length."""
    task = load_task("SICK-R", data)
    return [task, *split_by_length(task)]


def read_columns(file: Path, columns: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    """Return the number and the cells in `columns` of each line of a CSV file."""
    needed = f"{', '.join(columns[:-1])} and {columns[-1]}"
    if not file.is_file():
        raise UserError(f"{file} does not exist; give a CSV file with the columns {needed}")
    reader = csv.DictReader(io.StringIO(read_text(file)))
    try:
        with long_cells():
            header, rows = list(reader.fieldnames or []), [(reader.line_num, row) for row in reader]
    except csv.Error as error:  # a quote that never closes, or a file of something else
        raise UserError(f"{file}, line {reader.line_num}: {error}") from None
    if missing := [column for column in columns if column not in header]:
        raise UserError(f"{file} has no column {', '.join(missing)}; it needs {needed}")
    if repeated := [column for column in columns if header.count(column) > 1]:
        raise UserError(f"{file}: its header has the column {repeated[0]} twice; rename one of them")
    if ragged := [number for number, row in rows if None in row.values() or None in row]:
        raise UserError(f"{file}, line {ragged[0]}: the number of cells differs from the header")
    return [(number, [row[column] for column in columns]) for number, row in rows]


def load_pairs_file(path: str) -> PairTask:
    """Read pairs from a CSV file with the columns sentence1, sentence2, score."""
    file, rows = Path(path), []
    for number, (first, second, score) in read_columns(file, ("sentence1", "sentence2", "score")):
        try:
            rows.append((respaced(first), respaced(second), finite(score)))
        except ValueError:
            raise UserError(f"{file}, line {number}: score {quoted(score)} is not a number") from None
    task = pair_task(file.stem, rows, file.name)
    if len(set(task.scores)) < 2:
        raise UserError(f"{file} has no two different scores, which a correlation needs; grade more pairs")
    return task
