"""Benchmark of streams: how fast batches are read, and how fast a resumed run finds its position again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from accelerate import Accelerator
from tqdm.auto import tqdm

from ..data.streams import StreamPosition
from ..environment import peak_rss_bytes
from ..loop.building import build
from ..loop.run_data import RunData
from ..recipes import Recipe
from .race import race


def benchmark_stream(recipe: Recipe, *, batches: int = 10_000, repeats: int = 5) -> dict[str, object]:
    """Read batches of a stream as a run does. Then time the first batch after them, with the position and without it.

    Returns:
        * the figures of `race`: ours continues from the position that a checkpoint has, the usual way reads all rows
          before it again;
        * `rows`, `seconds to read` and `rows per second`, tokenised and collated;
        * the `place`, see `data.streams.StreamPosition`;
        * the peak memory.
    """
    recipe = replace(recipe, max_steps=batches + 1)
    data = RunData(recipe, recipe.seeds[0], build(recipe), Accelerator())

    def read(start: int, stop: int) -> Iterator[dict[str, Any]]:
        return data.batches("contrastive", start, stop, before=0)

    started, rows = time.perf_counter(), 0
    for batch in tqdm(read(0, batches), desc="Batches", total=batches, disable=not sys.stderr.isatty()):
        rows += batch["rows"]
    seconds = time.perf_counter() - started
    position = data.position

    def first_batch_after(known: StreamPosition | None) -> None:
        data.position = known
        next(read(batches, batches + 1))

    figures = race(lambda: first_batch_after(position), lambda: first_batch_after(None), repeats=repeats)
    return {
        "recipe": recipe.recipe,
        **figures,
        "batches": batches,
        "rows": rows,
        "seconds to read": seconds,
        "rows per second": rows / seconds,
        "place": asdict(position) if position else None,
        "peak bytes": peak_rss_bytes(),
    }
