"""The seven transfer tasks of SentEval: classification on frozen embeddings."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...errors import UserError
from .probing import PROTOCOLS, SEED, dev_then_test, folds_then_test, stratified_folds
from .senteval import check_count, find_senteval, numbered_lines, respaced
from .sts import Vectors

RELEASED_EXAMPLES = {
    "MR": {"all": 10662},
    "CR": {"all": 3775},
    "SUBJ": {"all": 10000},
    "MPQA": {"all": 10606},
    "SST2": {"train": 67349, "dev": 872, "test": 1821},
    "TREC": {"train": 5452, "test": 500},
    "MRPC": {"train": 4076, "test": 1725},
}
# The examples of the first file have label 1.
POLARITY = {
    "MR": ("rt-polarity.pos", "rt-polarity.neg"),
    "CR": ("custrev.pos", "custrev.neg"),
    "SUBJ": ("subj.objective", "subj.subjective"),
    "MPQA": ("mpqa.pos", "mpqa.neg"),
}
QUESTIONS = {"ABBR": 0, "DESC": 1, "ENTY": 2, "HUM": 3, "LOC": 4, "NUM": 5}
Example = tuple[tuple[str, ...], float]  # one sentence or two, and the class (the score in GLUE's STS-B)


@dataclass
class TransferTask:
    """Labelled sentences, or labelled pairs of sentences, in SentEval's order."""

    name: str  # one of `names.TRANSFER_TASKS`
    # examples by part: `all`, or `train` (and `dev`) and `test`. They are in SentEval's order, on which its folds
    # and batches depend.
    parts: dict[str, list[Example]]
    # source, revision: the data set they were read from
    source: str
    # a key of `probing.PROTOCOLS`: `default` is SentEval's, `fast` is the one SimCSE used in development, `mlp`
    # has a hidden layer of 50 units
    protocol: str = "default"
    revision: str | None = None

    def limited(self, rows: int) -> TransferTask:
        """Return the task with at most so many rows of each part, evenly chosen.

        Example:
            >>> task = TransferTask("MR", {"all": [((f"{n}",), n % 2) for n in range(10)]}, "SentEval MR")
            >>> sorted(task.limited(4).sentences()), task.limited(4).source
            (['0', '2', '5', '7'], 'SentEval MR, at most 4 rows of a part')
        """
        parts = dict(self.parts)
        for part, examples in parts.items():
            if len(examples) > rows:
                parts[part] = [examples[number * len(examples) // rows] for number in range(rows)]
        return replace(self, parts=parts, source=f"{self.source}, at most {rows} rows of a part")

    def sentences(self) -> set[str]:
        return {text for examples in self.parts.values() for texts, _ in examples for text in texts}

    def results(self, vectors: Vectors) -> list[dict]:
        """Return the test accuracy (× 100), with the held-out accuracy that chose the penalty as `dev`."""
        examples = [example for part in self.parts.values() for example in part]
        first, *second = (vectors([texts[side] for texts, _ in examples]) for side in range(len(examples[0][0])))
        features = np.hstack([abs(first - second[0]), first * second[0]]) if second else first
        labels = np.array([label for _, label in examples])
        ends = np.cumsum([len(part) for part in self.parts.values()])[:-1]
        parts = dict(zip(self.parts, np.split(np.arange(len(examples)), ends), strict=True))
        protocol = PROTOCOLS[self.protocol]
        if "dev" in parts:
            dev, test = dev_then_test(features, labels, **parts, protocol=protocol)
        elif "all" in parts:
            dev, test = folds_then_test(features, labels, stratified_folds(labels, protocol.folds), protocol)
        else:
            dev, test = folds_then_test(features, labels, [(parts["train"], parts["test"])], protocol)
        result = {"task": self.name, "metric": "accuracy", "value": test, "dev": dev}
        return [{**result, "classifier": protocol.classifier}]

    def receipt(self) -> dict[str, object]:
        return {
            **examples_receipt(self.parts, self.source, self.revision),
            "aggregation": "mean over folds" if "all" in self.parts else "all",
            "protocol": f"SentEval {self.protocol}",
            "seed": SEED,
        }


def examples_receipt(parts: dict[str, list[Example]], source: str, revision: str | None) -> dict[str, object]:
    """Return what identifies labelled examples: source, revision, rows per part, checksum of texts and labels."""
    digest = hashlib.sha256()
    for part, examples in parts.items():
        for texts, label in examples:
            digest.update("\t".join([part, *texts, str(label)]).encode() + b"\n")
    rows = {part: len(examples) for part, examples in parts.items()}
    return {"dataset": source, "revision": revision, "rows": rows, "sha256": digest.hexdigest()}


def load_transfer_task(name: str, data: str, protocol: str = "default") -> TransferTask:
    """Read a task."""
    senteval = find_senteval(data)
    if name in POLARITY:
        folder = senteval.root / name
        parts = {"all": _polarity(*(folder / file for file in POLARITY[name]))}
    elif name == "SST2":
        folder = senteval.root / "SST" / "binary"
        parts = {part: _labelled(folder / f"sentiment-{part}", (0,), 1) for part in RELEASED_EXAMPLES[name]}
    elif name == "TREC":
        folder = senteval.root / "TREC"
        parts = {"train": _questions(folder / "train_5500.label"), "test": _questions(folder / "TREC_10.label")}
    else:
        folder = senteval.root / "MRPC"
        files = {part: folder / f"msr_paraphrase_{part}.txt" for part in RELEASED_EXAMPLES[name]}
        parts = {part: _labelled(file, (3, 4), 0, header=1) for part, file in files.items()}
    for part, expected in RELEASED_EXAMPLES[name].items():
        check_count(name, f"examples in {folder} ({part})", expected, len(parts[part]))
    parts = {part: in_order(examples) for part, examples in parts.items()}
    return TransferTask(name, parts, senteval.source(folder), protocol, senteval.revision)


def load_trec_lengths(data: str) -> list[TransferTask]:
    """Read TREC with all questions, and without the training and test questions below 6 and below 8 words.

    Words are what white space separates. SentEval splits off punctuation, so that a question mark is a word.

    References:
        Wang and Lv 2024 (PrdSimCSE), table 12.
    """
    complete = load_transfer_task("TREC", data)
    shortened = []
    for words in (6, 8):
        parts = {
            part: [example for example in examples if len(example[0][0].split()) >= words]
            for part, examples in complete.parts.items()
        }
        shortened.append(replace(complete, name=f"TREC, from {words} words", parts=parts))
    return [complete, *shortened]


def in_order(examples: list[Example]) -> list[Example]:
    """Sort examples as SentEval does, by number of tokens and label. Afterwards, an empty text becomes a full stop.

    Example:
        >>> in_order([(("b",), 0), (("",), 1), (("a",), 0)])
        [(('.',), 1), (('b',), 0), (('a',), 0)]
    """
    ordered = sorted(examples, key=lambda example: (*(len(text.split()) for text in example[0]), example[1]))
    return [(tuple(text or "." for text in texts), label) for texts, label in ordered]


def _polarity(positive: Path, negative: Path) -> list[Example]:
    labelled = ((positive, 1), (negative, 0))
    return [((respaced(line),), label) for path, label in labelled for _, line in numbered_lines(path, "latin-1")]


def _questions(path: Path) -> list[Example]:
    examples: list[Example] = []
    for number, line in numbered_lines(path, "latin-1"):
        kind, _, question = line.partition(":")
        if kind not in QUESTIONS:
            raise UserError(f"{path}, line {number}: {kind[:20]!r} must be one of {', '.join(QUESTIONS)}")
        examples.append(((respaced(question.partition(" ")[2]),), QUESTIONS[kind]))
    return examples


def _labelled(path: Path, texts: tuple[int, ...], label: int, header: int = 0) -> list[Example]:
    """Read the sentences and the class, 0 or 1, from tab-separated columns. `header` lines precede them."""
    examples: list[Example] = []
    for number, line in numbered_lines(path)[header:]:
        cells = line.split("\t")
        try:
            kind = {"0": 0, "1": 1}[cells[label].strip()]
            examples.append((tuple(respaced(cells[column]) for column in texts), kind))
        except (IndexError, KeyError):
            raise UserError(f"{path}, line {number}: expected a sentence with the label 0 or 1") from None
    return examples
