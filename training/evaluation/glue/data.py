"""Read the tasks of GLUE: labelled texts from the Hub, or from a directory in GLUE's layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...hub import load_rows
from ..tasks.senteval import check_count, finite, read_text
from ..tasks.transfer import Example, examples_receipt

HUB = ("nyu-mll/glue", "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c")


@dataclass(frozen=True)
class Format:
    """The columns, classes and metrics of a task."""

    hub_texts: tuple[str, ...]  # the columns of the text, or of the two texts, on the Hub
    # texts, label: the columns of the texts and the label in GLUE's files, by name, or by number without a header
    texts: tuple[str | int, ...]
    label: str | int
    labels: tuple[str, ...]  # names of the classes in the order of the Hub's numbers; empty if the label is a score
    metrics: tuple[str, ...]  # keys of `fine_tuning.METRICS`. The first one chooses the epoch.


SENTENCES, QUESTIONS, QUESTION = ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence")
BINARY, ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
NLI = ("entailment", "neutral", "contradiction")
TASKS = {
    "CoLA": Format(("sentence",), (3,), 1, BINARY, ("matthews",)),
    "SST-2": Format(("sentence",), ("sentence",), "label", BINARY, ("accuracy",)),
    "MRPC": Format(SENTENCES, ("#1 String", "#2 String"), "Quality", BINARY, ("accuracy", "f1")),
    "STS-B": Format(SENTENCES, SENTENCES, "score", (), ("pearson", "spearman")),
    "QQP": Format(QUESTIONS, QUESTIONS, "is_duplicate", BINARY, ("accuracy", "f1")),
    "MNLI": Format(("premise", "hypothesis"), SENTENCES, "gold_label", NLI, ("accuracy",)),
    "QNLI": Format(QUESTION, QUESTION, "label", ENTAILMENT, ("accuracy",)),
    "RTE": Format(SENTENCES, SENTENCES, "label", ENTAILMENT, ("accuracy",)),
    "WNLI": Format(SENTENCES, SENTENCES, "label", BINARY, ("accuracy",)),
}
RELEASED_EXAMPLES: dict[str, dict[str, int | None]] = {
    "CoLA": {"train": 8551, "dev": 1043},
    "SST-2": {"train": 67349, "dev": 872},
    "MRPC": {"train": 3668, "dev": 408},
    "STS-B": {"train": 5749, "dev": 1500},
    "QQP": {"train": None, "dev": 40430},  # releases differ by a few training lines
    "MNLI": {"train": 392702, "dev_matched": 9815, "dev_mismatched": 9832},
    "QNLI": {"train": 104743, "dev": 5463},
    "RTE": {"train": 2490, "dev": 277},
    "WNLI": {"train": 635, "dev": 71},
}


@dataclass
class GlueTask:
    """A task with its examples."""

    name: str  # a key of `TASKS`
    # examples by part: `train` and `dev` (MNLI: `dev_matched`, `dev_mismatched`). An example is its texts and the
    # number of its class, or its score.
    parts: dict[str, list[Example]]
    # source, revision: the data set they were read from
    source: str
    revision: str | None = None

    def receipt(self) -> dict[str, object]:
        return examples_receipt(self.parts, self.source, self.revision)


def load_glue_task(name: str, data: str) -> GlueTask:
    """Read a task.

    Args:
        data: `hub`, or a directory in GLUE's layout (`MRPC/train.tsv`, `MRPC/dev.tsv`, …).
    """
    if name not in TASKS:
        raise UserError(f"tasks: {name!r} must be one of {', '.join(TASKS)}")
    if data == "hub":
        task = GlueTask(name, {part: _read_hub(name, part) for part in RELEASED_EXAMPLES[name]}, *HUB)
    else:
        files = {part: Path(data) / name / f"{part}.tsv" for part in RELEASED_EXAMPLES[name]}
        task = GlueTask(name, {part: _read_file(name, path) for part, path in files.items()}, f"GLUE {name}")
    for part, expected in RELEASED_EXAMPLES[name].items():
        if expected is not None:
            check_count(name, f"examples in {part}", expected, len(task.parts[part]))
    return task


def _read_hub(name: str, part: str) -> list[Example]:
    (repository, revision), split = HUB, part.replace("dev", "validation")
    config = name.lower().replace("-", "")
    local = "give a local copy in GLUE's layout with --data DIR"
    rows = load_rows(name, repository, config, split=split, revision=revision, instead=local)
    form, numbers = TASKS[name], dict(enumerate(TASKS[name].labels))
    examples = []
    for number, row in enumerate(rows, start=1):
        # On the Hub the classes are numbers, in the files they are names.
        label = numbers.get(row["label"]) if form.labels else row["label"]
        where = f"{repository} {config}, row {number} of {split}"
        examples.append(_example(form, where, [row[text] for text in form.hub_texts], label))
    return examples


def _read_file(name: str, path: Path) -> list[Example]:
    if not path.is_file():
        raise UserError(f"{path} is missing; --data must be a directory in GLUE's layout (with MRPC/train.tsv inside)")
    form = TASKS[name]
    lines = [line.split("\t") for line in read_text(path).removesuffix("\n").split("\n")]
    header: dict[str, int] = {}
    if isinstance(form.label, str):
        header = {title.strip(): place for place, title in enumerate(lines[0])}
        if missing := [str(title) for title in (*form.texts, form.label) if title not in header]:
            raise UserError(f"{path}: no column {', '.join(missing)}; use the file as GLUE distributes it")
    places = [header[place] if isinstance(place, str) else place for place in (*form.texts, form.label)]
    examples = []
    for number, cells in enumerate(lines, start=1):
        if header and number == 1:
            continue
        if len(cells) <= max(places):
            if name == "QQP":  # some lines of the release are cut off; the Hub's copy leaves them out too
                continue
            raise UserError(f"{path}, line {number}: expected at least {max(places) + 1} columns, got {len(cells)}")
        *texts, label = (cells[place] for place in places)
        examples.append(_example(form, f"{path}, line {number}", texts, label.strip()))
    return examples


def _example(form: Format, where: str, texts: list[str], label: Any) -> Example:
    try:
        return tuple(text.strip() for text in texts), form.labels.index(label) if form.labels else finite(label)
    except (AttributeError, TypeError, ValueError):
        wanted = f"one of the labels {', '.join(form.labels)}" if form.labels else "a score"
        raise UserError(f"{where}: expected a text with {wanted}") from None
