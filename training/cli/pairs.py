"""Commands that make files of sentence pairs: neighbours, backtranslate, synonyms."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from ..errors import UserError
from .options import SENTEVAL, Command, refuse_unwritable, whole

SENTENCES = "one sentence per line or row; or stsb-sentences, the sentences of STS-B, from --data"


def add_commands(command: Command) -> None:
    added = command(
        "neighbours",
        make_neighbours,
        "write each sentence of running text beside the next one (columns text, next), for DiffCSE's ablation",
        "csezoo neighbours book.txt --to neighbours.csv",
    )
    _add_files(added, "plain text, also as .gz; a blank line ends a text", sentences=False)
    added.add_argument("--lines", action="store_true", help="each line is a sentence: do not split the text")

    added = command(
        "backtranslate",
        backtranslate,
        "write each sentence beside its translation there and back again (columns text, back_translation); after an "
        "interruption, the same command continues",
        "csezoo backtranslate sentences.txt --forward models/en-de --back models/de-en --to pairs.csv",
    )
    _add_files(added, SENTENCES, sentences=True)
    forward = "a sequence-to-sequence model that translates into the other language"
    added.add_argument("--forward", required=True, metavar="MODEL", help=forward)
    added.add_argument(
        "--back", required=True, metavar="MODEL", help="the same or another model, which translates back"
    )
    added.add_argument(
        "--beams", type=whole(most=10_000), default=5, help="beams of the search (default: 5; SG-OPT used 100)"
    )
    added.add_argument("--batch_size", type=whole(most=10_000), default=16, help="sentences at a time (default: 16)")
    added.add_argument(
        "--max_length", type=whole(most=10_000), default=128, help="longest sentence in word pieces (default: 128)"
    )
    languages = "for a model of many languages: the codes of the sentences' language and the other one, such as "
    languages += "en_XX de_DE"
    added.add_argument("--languages", nargs=2, metavar=("FROM", "TO"), help=languages)
    prefixes = "texts to put before each sentence on the way there and back, as T5 needs them (default: none)"
    added.add_argument("--prefixes", nargs=2, default=["", ""], metavar=("THERE", "BACK"), help=prefixes)

    added = command(
        "synonyms",
        replace_synonyms,
        "write each sentence beside one in which words are replaced by synonyms (columns text, synonyms)",
        "csezoo synonyms sentences.txt --thesaurus synonyms.txt --to pairs.csv",
    )
    _add_files(added, SENTENCES, sentences=True)
    thesaurus = "groups of synonyms, one per line, separated by commas; or WordNet's data.noun, data.verb, ..."
    added.add_argument("--thesaurus", required=True, nargs="+", metavar="FILE", help=thesaurus)
    share = "share of the words with synonyms that are replaced (default: 0.1)"
    added.add_argument("--share", type=float, default=0.1, help=share)
    added.add_argument("--seed", type=int, default=0, help="seed of the choice of words (default: 0)")


def _add_files(added: argparse.ArgumentParser, file: str, *, sentences: bool) -> None:
    added.add_argument("file", metavar="FILE", help=file)
    added.add_argument("--to", required=True, metavar="FILE.csv", help="a new CSV file")
    if sentences:
        added.add_argument("--column", help="the column with the sentences (default: `text`, or the only column)")
        added.add_argument("--data", **{**SENTEVAL, "default": None})


def make_neighbours(options: argparse.Namespace) -> None:
    from ..data.pairs import neighbours
    from ..data.texts import stream_lines

    _refuse_target(options)
    pairs = list(neighbours(stream_lines(options.file), split=not options.lines))
    if not pairs:
        other = "" if options.lines else ", or give --lines"
        raise UserError(f"{options.file} has no text of two sentences; remove blank lines, which end a text{other}")
    _write(options, "next", pairs, lambda done: [pairs[done:]])


def backtranslate(options: argparse.Namespace) -> None:
    from tqdm.auto import trange

    from ..data.translation import round_trip, translator
    from ..evaluation.encoders import model_receipt

    _refuse_target(options)
    sentences = _sentences(options)
    sizes = {"beams": options.beams, "max_length": options.max_length}
    there = tuple(options.languages) if options.languages else None
    back = there and there[::-1]
    steps = [
        translator(name, **sizes, prefix=prefix, languages=codes)
        for name, prefix, codes in zip((options.forward, options.back), options.prefixes, (there, back), strict=True)
    ]
    other = round_trip(*steps)

    def batches(done: int) -> Iterator[list[tuple[str, str]]]:
        for first in trange(done, len(sentences), options.batch_size, desc="Translating"):
            batch = sentences[first : first + options.batch_size]
            yield list(zip(batch, other(batch), strict=True))

    models = [model_receipt(name)["model_sha256"] for name in (options.forward, options.back)]
    _write(options, "back_translation", [sentences, models], batches)


def replace_synonyms(options: argparse.Namespace) -> None:
    from ..data.pairs import read_thesaurus, with_synonyms

    _refuse_target(options)
    synonyms: dict[str, list[str]] = {}
    for file in options.thesaurus:
        if not Path(file).is_file():
            raise UserError(f"thesaurus: {file} is not a file; give a file of synonyms")
        for word, others in read_thesaurus(Path(file)).items():
            synonyms[word] = [*dict.fromkeys([*synonyms.get(word, []), *others])]
    if not 0 < options.share <= 1:
        raise UserError(f"share: {options.share} must be above 0 and at most 1")
    sentences = _sentences(options)

    # The choice depends on seed and sentence only.
    changed = [with_synonyms(text, synonyms, options.share, Random(f"{options.seed} {text}")) for text in sentences]
    pairs = list(zip(sentences, changed, strict=True))
    _write(options, "synonyms", pairs, lambda done: [pairs[done:]])


def _refuse_target(options: argparse.Namespace) -> None:
    from ..data.pairs import refuse_existing

    refuse_unwritable(options.to, "to")
    refuse_existing(Path(options.to))


def _write(
    options: argparse.Namespace,
    column: str,
    source: Sequence[object],
    batches: Callable[[int], Iterable[list[tuple[str, str]]]],
) -> None:
    from ..data.pairs import write_pairs

    given = {name: value for name, value in vars(options).items() if isinstance(value, str | int | float | list)}
    decisive = [{**given, "to": None, "batch_size": None, "command": None}, source]
    count = write_pairs(Path(options.to), ("text", column), batches, decisive=decisive)
    print(f"{count} pairs in {options.to}")


def _sentences(options: argparse.Namespace) -> list[str]:
    from ..data.texts import load_sentences, load_texts
    from ..recipes import Recipe
    from ..recipes.keys import STS_SENTENCES, STSB_SENTENCES

    if options.file in (STS_SENTENCES, STSB_SENTENCES):
        if options.column:
            raise UserError(f"column: {options.file} has no columns; leave the option out")
        return list(load_sentences(Recipe(dataset=options.file, eval_data=options.data or "hub"))["0"])
    if options.data:
        raise UserError(f"data: it is for {STSB_SENTENCES} and {STS_SENTENCES}; leave the option out")
    return load_texts(options.file, options.column)
