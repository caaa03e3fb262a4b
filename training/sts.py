"""The STS tasks: pairs of sentences with gold scores, from a directory in SentEval's layout or from the Hub."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import UserError
from .metrics.sts.sts import STS

# A task asks for the vectors of its sentences: `list[str] -> (n, d)`, float32.
Vectors = Callable[[list[str]], np.ndarray]

SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "OnWN", "images", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
STS_TASKS = (*SUBSETS, "STSBenchmark", "SICK-R")
DEV_TASK = "STSBenchmark-dev"
STSB_SPLITS = {"STSBenchmark-train": "sts-train.csv", DEV_TASK: "sts-dev.csv", "STSBenchmark": "sts-test.csv"}
ROWS = {
    "STS12": 3108,
    "STS13": 1500,
    "STS14": 3750,
    "STS15": 3000,
    "STS16": 1186,
    "STSBenchmark": 1379,
    "SICK-R": 4927,
    DEV_TASK: 1500,
    "STSBenchmark-train": 5749,
}
# The pinned revisions MTEB evaluates on; one split holds all pairs of a year, the "all" setting.
HUB = {
    "STS12": ("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384", "test"),
    "STS13": ("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", "test"),
    "STS14": ("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", "test"),
    "STS15": ("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3", "test"),
    "STS16": ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", "test"),
    "STSBenchmark": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "test"),
    "SICK-R": ("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d", "test"),
    DEV_TASK: ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "validation"),
    "STSBenchmark-train": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "train"),
}
# On the Hub SICK-R is train, trial and test together; the papers use the 4,927 test pairs (use a directory for those).
HUB_ROWS = {**ROWS, "SICK-R": 9927}


@dataclass
class PairTask:
    """Sentence pairs with gold similarities.

    Args:
        name: a task name of the zoo.
        pairs: the two sentences of each pair.
        scores: gold similarity of each pair, on the task's own scale.
        source, revision: where the pairs came from.
    """

    name: str
    pairs: list[tuple[str, str]]
    scores: list[float]
    source: str
    revision: str | None = None

    def sentences(self) -> set[str]:
        return {sentence for pair in self.pairs for sentence in pair}

    def similarities(self, vectors: Vectors) -> np.ndarray:
        """The cosine of each pair, `(n,)` in float64."""
        first, second = (unit_vectors(vectors([pair[side] for pair in self.pairs])) for side in (0, 1))
        return (first * second).sum(1)

    def results(self, vectors: Vectors) -> list[dict]:
        """Spearman correlation (× 100) of the cosine with the gold score, all pairs together."""
        scores = STS(keep_in_memory=True).compute(predictions=self.similarities(vectors), references=self.scores)
        if math.isnan(scores["spearman"]):
            raise UserError(f"{self.name}: all similarities are equal, the encoder gives one vector to every sentence")
        return [{"task": self.name, "metric": "spearman", "value": scores["spearman"], "similarity": "cosine"}]

    def receipt(self) -> dict[str, object]:
        """What identifies the pairs (source, revision, rows, checksum), and that all are scored together."""
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


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Float64 vectors of length one; a zero vector stays zero (its cosine counts as 0, as in SentEval).

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
        name: one of `STS_TASKS` or `STSB_SPLITS`.
        data: `hub`, or a directory in SentEval's layout (itself or its parent, `downstream/` inside).

    Raises:
        UserError: the data is missing or damaged (its row count is known).
    """
    if data == "hub":
        task, expected = _from_hub(name), HUB_ROWS[name]
    else:
        task, expected = _from_directory(name, Path(data)), ROWS[name]
    if len(task.pairs) != expected:
        raise UserError(f"{name}: {len(task.pairs)} pairs in {task.source}, {expected} expected: the data is damaged")
    return task


def _from_hub(name: str) -> PairTask:
    import datasets  # half a second, and only this door needs it

    repository, revision, split = HUB[name]
    try:
        rows = datasets.load_dataset(repository, split=split, revision=revision)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{name}: {repository} could not be loaded from the Hub ({type(error).__name__}); give a directory in "
            "SentEval's layout instead (--eval_data DIR in training, --data DIR in evaluation), or --eval_data none"
        ) from error
    pairs = list(zip(map(respaced, rows["sentence1"]), map(respaced, rows["sentence2"]), strict=True))
    return PairTask(name, pairs, [float(score) for score in rows["score"]], repository, revision)


def respaced(sentence: str) -> str:
    """SentEval's text: tokens split at white space and joined by single spaces."""
    return " ".join(sentence.split())


def senteval_root(directory: Path) -> Path:
    """The directory that holds the tasks: itself, or `downstream/` in it."""
    root = directory / "downstream" if (directory / "downstream").is_dir() else directory
    if not root.is_dir():
        raise UserError(f"{directory} is not a directory in SentEval's layout (with STS/ and SICK/ inside)")
    return root


def _from_directory(name: str, directory: Path) -> PairTask:
    root = senteval_root(directory)
    if name in SUBSETS:
        folder = root / "STS" / f"{name}-en-test"
        rows = [row for subset in SUBSETS[name] for row in read_subset(folder, subset)]
    elif name == "SICK-R":
        folder = root / "SICK" / "SICK_test_annotated.txt"
        rows = [_row(folder, n, line, (1, 2, 3)) for n, line in numbered_lines(folder) if n > 1]
    else:
        folder = root / "STS" / "STSBenchmark" / STSB_SPLITS[name]
        rows = [_row(folder, n, line, (5, 6, 4)) for n, line in numbered_lines(folder)]
    pairs = [(first, second) for first, second, _ in rows]
    # The name of the layout, not of this machine's directory: a receipt is read elsewhere.
    return PairTask(name, pairs, [score for *_, score in rows], f"SentEval {folder.relative_to(root)}")


def numbered_lines(path: Path, encoding: str = "utf-8-sig") -> list[tuple[int, str]]:
    """The lines of a file of SentEval's, counted from 1."""
    if not path.is_file():
        raise UserError(f"{path} is missing: is this a directory in SentEval's layout?")
    return list(enumerate(_text(path, encoding).removesuffix("\n").split("\n"), start=1))


def _text(path: Path, encoding: str = "utf-8-sig") -> str:
    try:
        return path.read_text(encoding=encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None


def _finite(score: str) -> float:
    if not math.isfinite(float(score)):
        raise ValueError
    return float(score)


def _row(path: Path, number: int, line: str, columns: tuple[int, int, int]) -> tuple[str, str, float]:
    """First sentence, second sentence and score of a line of tab-separated columns."""
    cells = line.split("\t")
    try:
        first, second, score = (cells[column] for column in columns)
        return respaced(first), respaced(second), _finite(score)
    except (IndexError, ValueError):
        raise UserError(f"{path}, line {number}: no sentence pair with a score") from None


def read_subset(folder: Path, subset: str) -> list[tuple[str, str, float]]:
    """One sub-set of a year; a pair whose gold line is empty was not scored and is left out."""
    sentences, gold = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
    pairs, scores = numbered_lines(sentences), numbered_lines(gold)
    if len(pairs) != len(scores):
        raise UserError(f"{sentences} has {len(pairs)} lines, {gold.name} {len(scores)}: the data is damaged")
    scored = [(number, line, score) for (number, line), (_, score) in zip(pairs, scores, strict=True) if score.strip()]
    return [_row(sentences, number, f"{score}\t{line}", (1, 2, 0)) for number, line, score in scored]


def split_by_length(task: PairTask, words: int = 8) -> list[PairTask]:
    """The pairs whose shorter sentence has at most so many words, and the others (PrdSimCSE, table 11).

    Example:
        >>> task = PairTask("toy", [("a b c", "d"), ("a b", "c d e")], [1.0, 2.0], "example")
        >>> [(part.name, part.pairs) for part in split_by_length(task, 1)]
        [('toy, to 1 words', [('a b c', 'd')]), ('toy, over 1 words', [('a b', 'c d e')])]
    """
    short = [min(len(sentence.split()) for sentence in pair) <= words for pair in task.pairs]
    parts = []
    for name, kept in (("to", short), ("over", [not is_short for is_short in short])):
        pairs = [pair for pair, keep in zip(task.pairs, kept, strict=True) if keep]
        scores = [score for score, keep in zip(task.scores, kept, strict=True) if keep]
        parts.append(PairTask(f"{task.name}, {name} {words} words", pairs, scores, task.source, task.revision))
    return parts


def load_lengths(data: str) -> list[PairTask]:
    """SICK-R, whole and split by length."""
    task = load_task("SICK-R", data)
    return [task, *split_by_length(task)]


def load_pairs_file(path: str) -> PairTask:
    """Pairs from a CSV file with the columns sentence1, sentence2, score."""
    file = Path(path)
    if not file.is_file():
        raise UserError(f"{file} does not exist")
    reader = csv.DictReader(io.StringIO(_text(file)))
    if missing := [c for c in ("sentence1", "sentence2", "score") if c not in (reader.fieldnames or [])]:
        raise UserError(f"{file} has no column {', '.join(missing)}: sentence1, sentence2 and score are needed")
    pairs, scores = [], []
    for row in reader:
        if None in row.values() or None in row:
            raise UserError(f"{file}, line {reader.line_num}: not as many cells as the header has")
        try:
            scores.append(_finite(row["score"]))
        except ValueError:
            raise UserError(f"{file}, line {reader.line_num}: score {row['score']!r} is not a number") from None
        pairs.append((respaced(row["sentence1"]), respaced(row["sentence2"])))
    if len(set(scores)) < 2:
        raise UserError(f"{file} holds {len(set(scores))} different scores, a correlation needs at least two")
    return PairTask(file.stem, pairs, scores, file.name)
