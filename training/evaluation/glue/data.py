"""The tasks of GLUE: labelled texts from a directory in GLUE's own layout or from the Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..tasks.senteval import finite, read_text
from ..tasks.transfer import Example, examples_receipt

HUB = ("nyu-mll/glue", "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c")


@dataclass(frozen=True)
class Format:
    """How a task is written down and scored.

    Args:
        hub_texts: columns of one text or two on the Hub.
        texts, label: the same and the label in GLUE's own files: names of the header, numbers where there is none.
        labels: names of the classes in the order of the Hub's numbers; none where the label is a score.
        metrics: of `glue.METRICS`, the first chooses an epoch.
    """

    hub_texts: tuple[str, ...]
    texts: tuple[str | int, ...]
    label: str | int
    labels: tuple[str, ...]
    metrics: tuple[str, ...]


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
ROWS: dict[str, dict[str, int | None]] = {
    "CoLA": {"train": 8551, "dev": 1043},
    "SST-2": {"train": 67349, "dev": 872},
    "MRPC": {"train": 3668, "dev": 408},
    "STS-B": {"train": 5749, "dev": 1500},
    "QQP": {"train": None, "dev": 40430},  # its releases differ by a few training lines
    "MNLI": {"train": 392702, "dev_matched": 9815, "dev_mismatched": 9832},
    "QNLI": {"train": 104743, "dev": 5463},
    "RTE": {"train": 2490, "dev": 277},
    "WNLI": {"train": 635, "dev": 71},
}


@dataclass
class GlueTask:
    """A task's examples.

    Args:
        name: of `TASKS`.
        parts: `train` and `dev` (MNLI: `dev_matched`, `dev_mismatched`): texts and number of the class, or score.
        source, revision: where they came from.
    """

    name: str
    parts: dict[str, list[Example]]
    source: str
    revision: str | None = None

    def receipt(self) -> dict[str, object]:
        return examples_receipt(self.parts, self.source, self.revision)


def load_glue_task(name: str, data: str) -> GlueTask:
    """Read a task.

    Args:
        name: of `TASKS`.
        data: `hub`, or a directory in GLUE's own layout (`MRPC/train.tsv`, `MRPC/dev.tsv`, …).

    Raises:
        UserError: an unknown task, or its data is missing or damaged (its row counts are known).
    """
    if name not in TASKS:
        raise UserError(f"tasks: {name!r} is none of {', '.join(TASKS)}")
    if data == "hub":
        task = GlueTask(name, {part: _read_hub(name, part) for part in ROWS[name]}, *HUB)
    else:
        files = {part: Path(data) / name / f"{part}.tsv" for part in ROWS[name]}
        task = GlueTask(name, {part: _read_file(name, path) for part, path in files.items()}, f"GLUE {name}")
    for part, expected in ROWS[name].items():
        found = len(task.parts[part])
        if found != expected and expected is not None:
            raise UserError(f"{name}: {found} examples in {part}, {expected} expected: the data is damaged")
    return task


def _read_hub(name: str, part: str) -> list[Example]:
    import datasets  # half a second, and only this door needs it

    (repository, revision), split = HUB, part.replace("dev", "validation")
    config = name.lower().replace("-", "")
    try:
        rows = datasets.load_dataset(repository, config, split=split, revision=revision)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{name}: {repository} could not be loaded from the Hub ({type(error).__name__}); give --data a directory "
            "in GLUE's layout instead"
        ) from error
    form, numbers = TASKS[name], dict(enumerate(TASKS[name].labels))
    examples = []
    for number, row in enumerate(rows, start=1):
        # The Hub numbers the classes, the files name them.
        label = numbers.get(row["label"]) if form.labels else row["label"]
        where = f"{repository} {config}, row {number} of {split}"
        examples.append(_example(form, where, [row[text] for text in form.hub_texts], label))
    return examples


def _read_file(name: str, path: Path) -> list[Example]:
    if not path.is_file():
        raise UserError(f"{path} is missing: is this a directory in GLUE's layout (MRPC/train.tsv inside)?")
    form = TASKS[name]
    lines = [line.split("\t") for line in read_text(path).removesuffix("\n").split("\n")]
    header: dict[str, int] = {}
    if isinstance(form.label, str):
        header = {title.strip(): place for place, title in enumerate(lines[0])}
        if missing := [str(title) for title in (*form.texts, form.label) if title not in header]:
            raise UserError(f"{path} has no column {', '.join(missing)}")
    places = [header[place] if isinstance(place, str) else place for place in (*form.texts, form.label)]
    examples = []
    for number, cells in enumerate(lines, start=1):
        if header and number == 1:
            continue
        if len(cells) <= max(places):
            if name == "QQP":  # as released some of its lines break off; the Hub's copy leaves them out too
                continue
            raise UserError(f"{path}, line {number}: {len(cells)} columns are too few")
        *texts, label = (cells[place] for place in places)
        examples.append(_example(form, f"{path}, line {number}", texts, label.strip()))
    return examples


def _example(form: Format, where: str, texts: list[str], label: Any) -> Example:
    try:
        return tuple(text.strip() for text in texts), form.labels.index(label) if form.labels else finite(label)
    except (AttributeError, TypeError, ValueError):
        wanted = f"a label of {', '.join(form.labels)}" if form.labels else "a score"
        raise UserError(f"{where}: no text with {wanted}") from None
