"""How much the vector of a sentence changes when the sentence is edited, or gets a prefix (PrdSimCSE)."""

from __future__ import annotations

from dataclasses import dataclass

from csezoo.modeling.methods.prdsimcse.prefixes import NEGATIVE_PREFIXES, POSITIVE_PREFIXES, positive_prefix

from .names import DEV_TASK
from .sts import Vectors, cosines, load_task

# Table 1 of the paper.
ORIGIN = "I love natural language processing."
EDITS = {
    "positive prefix": "Um, I love natural language processing.",
    "random deletion": "I natural language processing.",
    "word substitution": "I love artificial language processing.",
    "rearrangement": "natural language processing love I.",
}


@dataclass
class EditTask:
    """The mean cosine of sentences and their edited copies: mean over i of cos(f(x_i), f(x'_i)). Not times 100."""

    name: str
    originals: list[str]
    edited: list[str]
    source: dict[str, object]

    def sentences(self) -> set[str]:
        return {*self.originals, *self.edited}

    def results(self, vectors: Vectors) -> list[dict]:
        value = float(cosines(vectors(self.originals), vectors(self.edited)).mean())
        return [{"task": self.name, "metric": "cosine", "value": value}]

    def receipt(self) -> dict[str, object]:
        return self.source


def load_edits(data: str) -> list[EditTask]:
    """Return the edits of PrdSimCSE's table 1, and each of its prefixes before the sentences of STS-B dev.

    The paper chooses positive prefixes that keep the vector and negative prefixes that change it (section 5.2), on
    examples that it does not name. A sentence of fewer than eight words has no `level` prefix, so its copy is equal.
    """
    table = {"dataset": "PrdSimCSE, table 1", "rows": 1}
    tasks = [EditTask(name, [ORIGIN], [edited], table) for name, edited in EDITS.items()]
    pairs = load_task(DEV_TASK, data)
    sentences = sorted(pairs.sentences())
    for kind in POSITIVE_PREFIXES:
        edited = [f"{positive_prefix(sentence, kind)} {sentence}".lstrip() for sentence in sentences]
        tasks.append(EditTask(kind, sentences, edited, pairs.receipt()))
    for kind, prefix in NEGATIVE_PREFIXES.items():
        tasks.append(EditTask(kind, sentences, [f"{prefix} {sentence}" for sentence in sentences], pairs.receipt()))
    return tasks
