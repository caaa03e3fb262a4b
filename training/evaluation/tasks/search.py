"""Search in passages of your own: the rank of the passage that answers a query."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import UserError
from .senteval import read_text
from .sts import Vectors, read_columns, unit_vectors

# Ranks after this one count as not found.
LAST_RANK = 10
# Queries whose similarities to all passages are in memory at once.
AT_ONCE = 256


@dataclass
class SearchTask:
    """Queries, the passages that answer each, and the passages that are searched."""

    name: str
    queries: dict[str, set[int]]
    passages: list[str]

    def sentences(self) -> set[str]:
        return {*self.queries, *self.passages}

    def scores(self, vectors: Vectors) -> np.ndarray:
        """Return the reciprocal rank (× 100) of the first right passage of each query, 0 after rank 10, `(queries,)`.

        The rank of a passage is one plus the number of wrong passages with at least its cosine.
        """
        passages = unit_vectors(vectors(self.passages))
        scores = []
        texts = list(self.queries)
        for start in range(0, len(texts), AT_ONCE):
            block = texts[start : start + AT_ONCE]
            for text, row in zip(block, unit_vectors(vectors(block)) @ passages.T, strict=True):
                right = sorted(self.queries[text])
                best = row[right].max()
                row[right] = -np.inf
                rank = 1 + int((row >= best).sum())
                scores.append(100 / rank if rank <= LAST_RANK else 0.0)
        return np.array(scores)

    def results(self, vectors: Vectors) -> list[dict]:
        """Return the mean reciprocal rank."""
        sizes = {"queries": len(self.queries), "corpus": len(self.passages)}
        return [{"task": self.name, "metric": "mrr@10", "value": float(self.scores(vectors).mean()), **sizes}]

    def receipt(self) -> dict[str, object]:
        judged = [(query, sorted(self.passages[n] for n in right)) for query, right in self.queries.items()]
        digest = hashlib.sha256(repr((judged, sorted(self.passages))).encode())
        return {"dataset": self.name, "rows": len(self.queries), "sha256": digest.hexdigest()}


def load_search(queries: str, passages: str | None = None) -> SearchTask:
    """Read a search from files.

    Args:
        queries: CSV file with the columns query and passage: a query, and a passage that answers it. A query with
            several such passages has several rows.
        passages: text file with further passages to search, one on each line.
    """
    file = Path(queries)
    numbers: dict[str, int] = {}
    judged: dict[str, set[int]] = {}
    for number, cells in read_columns(file, ("query", "passage")):
        query, passage = (cell.strip() for cell in cells)
        if not query or not passage:
            raise UserError(f"{file}, line {number}: a query or a passage is empty")
        judged.setdefault(query, set()).add(numbers.setdefault(passage, len(numbers)))
    if passages is not None:
        if not Path(passages).is_file():
            raise UserError(f"{passages} does not exist; give a text file with one passage on each line")
        for line in read_text(Path(passages)).split("\n"):
            if line.strip():
                numbers.setdefault(line.strip(), len(numbers))
    if not judged or len(numbers) < 2:
        raise UserError(f"{file}: {len(judged)} queries and {len(numbers)} passages; a search needs two passages")
    return SearchTask(file.stem, judged, list(numbers))
