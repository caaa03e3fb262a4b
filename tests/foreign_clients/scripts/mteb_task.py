"""The description of an STS task on texts of our own, as MTEB wants it."""

from mteb.abstasks.task_metadata import TaskMetadata

UNKNOWN = "reference date domains task_subtypes license annotations_creators dialect sample_creation".split()


def description(name: str, path: str) -> TaskMetadata:
    """Return what describes a task.

    Args:
        name: of the task.
        path: of its data set, with pairs in the split `test`.
    """
    return TaskMetadata(
        name=name,
        description="Pairs scored by the words they share.",
        dataset={"path": path, "revision": "main"},
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        bibtex_citation="",
        **dict.fromkeys(UNKNOWN),
    )
