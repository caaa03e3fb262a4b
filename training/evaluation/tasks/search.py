"""Search in passages of your own: the rank of the passage that answers a query."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from csezoo.modeling.serving.encoding_csezoo import SIMILARITIES

from ...errors import UserError
from ..sentence_vectors import Encode, as_role, similarity_of, vectors_of
from .senteval import read_text
from .sts import read_columns

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

    def scores(self, encode: Encode) -> np.ndarray:
        """Return the reciprocal rank (× 100) of the first right passage of each query, 0 after rank 10, `(queries,)`.

        Queries and passages are encoded with the prompts that the model has for them, and compared by its similarity.
        The rank of a passage is one plus the number of wrong passages that are at least as similar. A passage that is
        the query itself is not a wrong one.
        """
        texts = list(self.queries)
        places = {passage: place for place, passage in enumerate(self.passages)}
        queries, passages = (
            torch.from_numpy(vectors_of(as_role(encode, role), of_role)).double()
            for role, of_role in (("query", texts), ("document", self.passages))
        )
        similarities = SIMILARITIES[similarity_of(encode)]
        scores = []
        for start in range(0, len(texts), AT_ONCE):
            block = slice(start, start + AT_ONCE)
            for text, row in zip(texts[block], similarities(queries[block], passages).numpy(), strict=True):
                right = sorted(self.queries[text])
                best = row[right].max()
                row[[*right, *([places[text]] if text in places else [])]] = -np.inf
                rank = 1 + int((row >= best).sum())
                scores.append(100 / rank if rank <= LAST_RANK else 0.0)
        return np.array(scores)


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
