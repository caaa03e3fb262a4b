"""`csezoo cards`: write the model cards of all recipes and measured runs, their index, and `results.csv`."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..errors import writing
from ..files import refuse_links_out, refuse_other_file
from ..tables import csv_table, link, markdown_table, plain
from .entries import Entry, Score, entries
from .listing import COLUMNS, FILE, OF_MODEL, OF_SCORE, cells
from .method_texts import all_ideas

TITLE = "# Model cards"
INTRODUCTION = f"""{TITLE}

Every recipe, every run in this directory and every checkpoint that the papers' authors released has a card.
`csezoo cards` writes them from recipes, results and the tables of the papers; no number is typed by hand.

* *adapter here*: a low-rank change of a public encoder, at most 1 MB, in the directory of its card. The card has three
  ways to load it; `csezoo merge NAME --to DIR` makes the complete model. Scores are as for *measured here*, of a
  public model on public tests, so they can be compared with the papers'.
* *measured here*: scored with csezoo. The weights are not published. Trained models come first, then the others. An
  untrained encoder has no card; its name links its results. Scores are Spearman × 100, and the average is over the
  seven STS tests; ± is the standard deviation over seeds. Runs on a small stand-in encoder (minilm) can be compared
  with each other, but not with the papers.
* *published by its authors*: a checkpoint on the Hub. The scores are what its authors report; nothing was verified
  here. `csezoo convert` makes a repository of the zoo from it.
* *recipe only*: no weights. The scores are those of the paper, if it reports this setting.

`csezoo train --method` takes the methods. Other keys make the additions, such as `promptbert` (a prompt) and
`simcse-sup` (labelled triplets). MB is the size of the weights in float32. CPU ms is the processor time for one
sentence of 16 word pieces, on one thread, measured by `csezoo benchmark serving` on random weights of the same shape.
Both are of an adapter and its encoder, as PEFT loads them; merged, they are those of the encoder alone. All scores are
in [`{FILE}`]({FILE}), which `csezoo models` reads."""


def write_cards(directory: Path) -> list[Entry]:
    """Write the card of every recipe and every measured run, the pictures of their ideas, the index and `results.csv`.

    Args:
        directory: the directory of the cards. A sub-directory with `recipe.yaml` and `results.json` is a measured run;
            its card is written there. JSON files in `untrained/` are results of encoders without training.
    """
    refuse_links_out(directory)
    refuse_other_file(directory / "README.md", TITLE, "out")
    refuse_other_file(directory / FILE, ",".join(OF_MODEL[:3]), "out")
    index = entries(directory)
    rows = []
    for entry in index:
        name, *others = cells(entry.model).values()
        rows.append([link(name, entry.model.card), *map(plain, others)])
    with writing("out", directory):
        (directory / "ideas").mkdir(parents=True, exist_ok=True)
        for picture in all_ideas().values():
            shutil.copy(picture, directory / "ideas")
        for entry in index:
            if entry.card:
                (directory / entry.model.card).parent.mkdir(parents=True, exist_ok=True)
                entry.card.save(directory / entry.model.card)
        page = f"{INTRODUCTION}\n\n{markdown_table(list(COLUMNS), *rows)}\n"
        (directory / "README.md").write_text(page, encoding="utf-8")
        (directory / FILE).write_text(results_csv(index), encoding="utf-8")
    return index


def results_csv(index: list[Entry]) -> str:
    """Return a line for each model, task and seed. A model without any score has one line without a task."""
    rows: list[list[object]] = []
    for entry in index:
        model = entry.model
        time = model.cpu_ms_per_sentence
        texts = {"model": model.name, "trained": str(model.trained).lower()}
        of_model = {**vars(model), **texts, "cpu_ms_per_sentence": time and f"{time:.4g}"}
        first = [of_model[name] for name in OF_MODEL]
        rows += [[*first, *line] for line in map(_cells, entry.lines)] or [[*first, *[None] * len(OF_SCORE)]]
    return csv_table([*OF_MODEL, *OF_SCORE], *rows)


def _cells(line: Score) -> list[object]:
    value = f"{line.value:.4f}" if line.source == "csezoo" else f"{line.value:.2f}"
    return [line.task, line.metric, line.seed, value, line.deviation, line.source]
