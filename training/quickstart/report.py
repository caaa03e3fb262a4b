"""The report of the quickstart: scores of all rows, neighbours and similarities before and after training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple, cast

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from ..environment import progress_bar
from ..evaluation.encoders import load_encoder, plain_encoder
from ..evaluation.sentence_vectors import Encode, SentenceVectors
from ..evaluation.suites import encode_once
from ..evaluation.tasks.neighbours import nearest_sentences, side_by_side
from ..evaluation.tasks.retrieval import RetrievalTask
from ..evaluation.tasks.sts import PairTask, load_pairs_file
from ..loop.runs import load_lines
from ..pictures.vectors import draw_similarities
from ..recipes import Recipe
from ..tables import text_table

PICTURE = "before_and_after.png"


class Trained(NamedTuple):
    """A finished run."""

    recipe: Recipe
    results: dict
    best: Path


def report(runs: list[Trained], output: Path) -> str:
    """Draw the picture and return the printed report. The last run is the main one.

    The rows are the base model under two poolings, tf-idf fitted on the test sentences, and each trained model. Recall
    counts how often the nearest of all test sentences is the partner that means the same (grade 5).
    """
    main, best = runs[-1].recipe, runs[-1].best
    task = load_pairs_file(cast(str, main.test_file))
    makers: dict[str, Callable[[], Encode]] = {
        **{f"untrained, {pooling}": partial(_untrained, main, pooling) for pooling in ("cls", "mean")},
        "tf-idf": partial(_tf_idf, task),
        **{row_name(run.recipe): partial(_trained, run) for run in runs},
    }
    vectors: dict[str, SentenceVectors] = {}  # of the test sentences
    with progress_bar(len(makers), "encoding the test sentences") as bar:
        for name, make in makers.items():
            vectors[name] = encode_once(make(), [task])
            bar.update()
    _, before, _, *trained = vectors
    after = trained[-1]
    panels = {
        f"{name}: {_spearman(vectors[name], task):.1f}": task.similarities(vectors[name])
        for name in (before, *trained)
    }
    draw_similarities(panels, np.array(task.scores), output / PICTURE)
    nearest = side_by_side(*(nearest_sentences(task, vectors[name]) for name in (before, after)))
    return "\n".join(
        [
            "",
            *[f"{row_name(run.recipe)}: {learnt(run)}" for run in runs],
            "",
            f"Test: {len(task.pairs)} graded pairs of sentences about events that no training text describes.",
            *score_lines(vectors, task),
            "",
            f"Nearest test sentence, {before}, and {after}:",
            *neighbour_lines(nearest),
            "",
            f"Similarities at each grade, before and after: {output / PICTURE}",
            f"The finished repository: {best}",
            *load_lines(best, [row["query"] for row in nearest[:2]]),
        ]
    )


def row_name(recipe: Recipe) -> str:
    """Return what the report calls a trained model.

    Example:
        >>> row_name(Recipe()), row_name(Recipe(method="diffaug", nli_file="triplets.csv"))
        ('simcse, no labels', 'diffaug, labels')
    """
    return f"{recipe.method}, {'labels' if recipe.text_columns or recipe.nli_file else 'no labels'}"


def learnt(run: Trained) -> str:
    """Return from what a model has learnt, and for how long."""
    file = Path(run.recipe.train_file or run.recipe.dataset or "")
    updates = run.results.get("runs", [run.results])[0]["training"]["updates"]
    if file.suffix not in (".txt", ".csv"):  # not a file of the world
        return f"{updates} updates on {file.name}"
    with file.open(encoding="utf-8") as lines:
        rows = sum(1 for _ in lines) - (file.suffix == ".csv")
    kind = "NLI triplets (premise, entailed, contradicted)" if run.recipe.text_columns else "sentences"
    return f"{updates} updates on {rows:,} {kind}"


def _untrained(recipe: Recipe, pooling: str) -> Encode:
    encoder, tokenizer = plain_encoder(cast(str, recipe.base_model), pooling)
    return lambda texts: encoder.encode(texts, tokenizer, batch_size=128)


def _trained(run: Trained) -> Encode:
    return load_encoder(str(run.best))[0]


def _tf_idf(task: PairTask) -> Encode:
    vectorizer = TfidfVectorizer().fit(sorted(task.sentences()))
    return lambda texts: vectorizer.transform(texts).toarray()


def score_lines(vectors: dict[str, SentenceVectors], task: PairTask) -> list[str]:
    """Return a table: Spearman (× 100) and the recall of the partner that means the same, as a share."""
    table = [["model", "Spearman x 100", "recall@1"]]
    for name, of_model in vectors.items():
        recall = RetrievalTask(task, equal=max(task.scores)).results(of_model)[0]["value"] / 100
        table.append([name, f"{_spearman(of_model, task):.2f}", f"{recall:.2f}"])
    return text_table(table).splitlines()


def _spearman(vectors: SentenceVectors, task: PairTask) -> float:
    return task.results(vectors)[0]["value"]


def neighbour_lines(nearest: list[dict]) -> list[str]:
    """Return for each query a line, and its nearest other sentence before and after, side by side."""
    lines = []
    for row in nearest:
        texts = [f"{row[side]['cosine']:.2f} {row[side]['sentence']}" for side in ("before", "after")]
        columns = [wrap(text, 56, subsequent_indent="     ") for text in texts]
        height = max(map(len, columns))
        left, right = (column + [""] * (height - len(column)) for column in columns)
        lines += [f"  {row['query']}", *(f"    {a:<58}{b}".rstrip() for a, b in zip(left, right, strict=True))]
    return lines
