"""Benchmark of starting: how long a run takes from its command to its first update, without a cache and with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..data.texts import load_sentences
from ..errors import UserError
from ..recipes import Recipe, dump_recipe, make_recipe
from .race import machine
from .soak import watch, write_lines

SHORT = 10_000  # lines of the short file
EVERY = 0.05  # seconds between two samples


def benchmark_start(recipe: Recipe, *, lines: int = 1_000_000) -> dict[str, object]:
    """Start `csezoo train` on a short and on a long file, each twice, and stop it after its first update.

    Args:
        recipe: a recipe of any method. The files consist of its sentences, repeated.
        lines: of the long file. The short one has 10,000.

    Returns:
        * `starts`: for each number of lines the `first` start and the `second`, which finds the tokens in the cache:
          the `seconds` to the first update, and the peak `memory` in bytes, without the pages of mapped files;
        * the machine.

    Raises:
        UserError: the run failed (with the last line it printed), or not more lines than the short file has.
    """
    if lines <= SHORT:
        raise UserError(f"lines: {lines} must be more than {SHORT:,}, the lines of the short file")
    recipe = replace(recipe, streaming=False)
    sentences = list(load_sentences(recipe)["0"])
    starts: dict[int, dict[str, Any]] = {}
    with TemporaryDirectory() as directory:
        file, text = Path(directory) / "recipe.yaml", Path(directory) / "lines.txt"
        others = ("dataset", "dataset_file", "dataset_revision", "text_columns", "max_train_sentences")
        keys: dict[str, Any] = dict.fromkeys(others)
        keys |= {"train_file": str(text), "max_steps": 2, "log_steps": 1, "seeds": recipe.seeds[:1]}
        for count in (SHORT, lines):
            write_lines(text, sentences, count)
            cache = {"HF_DATASETS_CACHE": str(Path(directory) / "cache")}
            starts[count] = {}
            for name in ("first", "second"):
                keys["output_dir"] = str(Path(directory) / f"{name}-{count}")
                dump_recipe(make_recipe({**recipe.to_dict(), **keys}), file)
                samples = watch(["csezoo.training.train", str(file)], EVERY, until="step 1 ", environment=cache)
                memory = max(sample.rss - sample.mapped for sample in samples)
                starts[count][name] = {"seconds": samples[-1].second, "memory": memory}
    return {
        "benchmark": "start",
        "recipe": recipe.recipe,
        "method": recipe.method,
        "starts": starts,
        "machine": machine(),
    }
