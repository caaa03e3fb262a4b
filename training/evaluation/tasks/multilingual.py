"""Read pairs in languages other than English: BQ, LCQMC, STS 2017 in eleven language pairs, STS 2014 in Spanish."""

from __future__ import annotations

from pathlib import Path

from ...errors import UserError
from .senteval import find_senteval, numbered_lines, read_pair, read_subset
from .sts import PairTask, counted, from_hub, pair_task

CHINESE = {
    "BQ": (10000, ("C-MTEB/BQ", "e3dda5e115e487b39ec7e618c0c6a29137052a55", "test")),
    "LCQMC": (12500, ("C-MTEB/LCQMC", "17f9b096f80380fce5ed12a9be8be7784b337daf", "test")),
}
STS17 = ("mteb/sts17-crosslingual-sts", "faeb762787bd10488a50c8b5be4a3b82e411949c", "test")
# The language pairs of STS2017-extended (Reimers, Gurevych 2020): six of SemEval and four translated ones.
STS17_LANGUAGES = ("ar-ar", "en-ar", "es-es", "es-en", "en-en", "en-tr", "en-de", "fr-en", "it-en", "nl-en")
STS17_ROWS = dict.fromkeys(STS17_LANGUAGES, 250)
STS17_HUB_ROWS = {**STS17_ROWS, "ko-ko": 2846}
SPANISH_ROWS = {"news": 480, "wikipedia": 324}


def load_chinese(data: str) -> list[PairTask]:
    """Read the test pairs of BQ and LCQMC: the same question or not (1 or 0), scored by Spearman of the cosine.

    PrdSimCSE (table 6) machine-translates both into English, and publishes neither the translations nor the metric.
    The metric is not accuracy, since half of the labels of BQ are 1 and the scores are below 50. This function reads
    the Chinese originals; to score your own translation, use `csezoo evaluate --pairs`.

    Args:
        data: `hub`, or a directory with the files as distributed, `BQ/BQ.test.data` and `LCQMC/LCQMC.test.data`:
            sentence, sentence and label, tab-separated, without a header.
    """
    return [
        _read(name, data, rows, place, Path(name, f"{name}.test.data"), "spearman")
        for name, (rows, place) in CHINESE.items()
    ]


def load_sts17(data: str) -> list[PairTask]:
    """Read SemEval-2017 task 1, one task per language pair, scored by Pearson as in SemEval and in SG-OPT (table 3).

    SG-OPT reports tracks 1, 3 and 5: `STS17 ar-ar`, `STS17 es-es` and `STS17 en-en`.

    Args:
        data: `hub` (eleven language pairs, with Korean), or a directory with the ten files of the archive
            STS2017-extended, `STS/STS2017-extended/STS.en-en.txt` and so on: sentence, sentence and score,
            tab-separated.
    """
    folder = Path("STS", "STS2017-extended")
    return [
        _read(f"STS17 {languages}", data, rows, STS17, folder / f"STS.{languages}.txt", "pearson", languages)
        for languages, rows in (STS17_HUB_ROWS if data == "hub" else STS17_ROWS).items()
    ]


def load_spanish(data: str) -> list[PairTask]:
    """Read SemEval-2014 task 10 in Spanish, news and Wikipedia, scored by Pearson as in SemEval and in SG-OPT.

    SemEval averages the correlations of the two parts, weighted by their number of pairs. SG-OPT (table 2) does not
    say how it aggregates. Here all pairs are scored together, as everywhere in the zoo.

    Args:
        data: a directory with the release's files in `STS/STS14-es-test/`: `STS.input.news.txt`, `STS.gs.news.txt`
            and the same for `wikipedia`.
    """
    if data == "hub":
        raise UserError(
            "STS14-es: no data set on the Hub contains these 804 pairs; give --data DIR with STS/STS14-es-test/ inside"
        )
    senteval = find_senteval(data)
    folder = senteval.root / "STS" / "STS14-es-test"
    rows = [row for part in SPANISH_ROWS for row in read_subset(folder, part)]
    return [
        counted(pair_task("STS14-es", rows, senteval.source(folder), metric="pearson"), sum(SPANISH_ROWS.values()))
    ]


def _read(
    name: str, data: str, rows: int, place: tuple[str, str, str], file: Path, metric: str, config: str | None = None
) -> PairTask:
    """Read a task from its place on the Hub, or from its file in a directory, which has three columns."""
    if data == "hub":
        return counted(from_hub(name, *place, config, metric), rows)
    senteval = find_senteval(data)
    path = senteval.root / file
    pairs = [read_pair(path, number, line, (0, 1, 2)) for number, line in numbered_lines(path)]
    return counted(pair_task(name, pairs, senteval.source(path), metric=metric), rows)
