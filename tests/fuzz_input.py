"""Throw broken configurations, tokenizers, recipes and data files at the commands, and count what is no clear answer.

    python -m tests.fuzz_input --minutes 45 --out fuzz.json

Every case starts from files that work and breaks some of them at random. A command must then succeed, or end with one
line and exit code 2. It may change no file that it was given. Everything else has fallen.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

# Set before any library reads it: no case may reach the network.
os.environ["HF_HUB_OFFLINE"] = "1"

import yaml
from accelerate.state import AcceleratorState

from csezoo.training.cli.parser import main
from csezoo.training.recipes import method_keys
from csezoo.training.recipes.keys import recipe_keys
from tests.conftest import SENTENCES, save_base, write_pairs
from tests.repositories import tiny_repository

SMALL = "--eval_data none --report_to none --max_steps 1 --batch_size 4 --max_length 16".split()
ODD = [None, True, False, 0, 1, -1, 3, 10**6, 10**30, 0.5, -0.5, 1e308, float("nan"), float("inf")]
ODD += ["", "x", "0", "nan", "x" * 300, "bert", "kernels-community/activation", "../x", "\x00", "😀"]
ODD += [[], {}, [1], {"a": 1}, [[]], ["bert"]]
CELLS = ["", " ", "a cat", "the dog", "nan", "0", "1.5", "-1", "inf", "1e999", '"', "'", ";", "\t", "\ufeff"]
CELLS += ["entailment", "neutral", "contradiction", "-", "label", "text", "sentence1", "sentence2", "score"]
CELLS += ["😀", "\x00", "x" * 3000]


class Case:
    """A directory with working files, a random generator, and the commands that read the files.

    Args:
        number: seeds the generator, so that a case can be run again alone.
    """

    def __init__(self, originals: Path, directory: Path, number: int):
        self.draw = random.Random(number)
        self.directory = Path(shutil.copytree(originals, directory / str(number)))

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def break_json(self, file: Path) -> None:
        """Change, drop or add values in a JSON file, or damage its text."""
        text = file.read_text(encoding="utf-8")
        if self.draw.random() < 0.15:
            file.write_bytes(self.damaged(text.encode()))
            return
        content = json.loads(text)
        for _ in range(self.draw.choice([1, 1, 1, 2, 4])):
            content = self.changed(content)
        file.write_text(json.dumps(content), encoding="utf-8")

    def changed(self, content: object) -> object:
        """Return JSON content with a value replaced by an odd one, dropped, or taken from another place."""
        if isinstance(content, dict) and content and self.draw.random() < 0.97:
            key = self.draw.choice(list(content))
            nested = isinstance(content[key], dict | list) and self.draw.random() < 0.8
            choice = self.draw.random()
            if nested:
                return {**content, key: self.changed(content[key])}
            if choice < 0.1:
                return {name: value for name, value in content.items() if name != key}
            if choice < 0.25:
                return {**content, key: self.draw.choice(list(content.values()))}
            return {**content, key: self.draw.choice(ODD)}
        if isinstance(content, list) and content and self.draw.random() < 0.9:
            place = self.draw.randrange(len(content))
            return [*content[:place], self.changed(content[place]), *content[place + 1 :]]
        return self.draw.choice(ODD)

    def damaged(self, content: bytes) -> bytes:
        """Return bytes that are cut, have random bytes in them, or are something else."""
        place = self.draw.randrange(len(content) + 1)
        before, after = content[:place], content[place:]
        kinds = [before, before + self.draw.randbytes(3) + after, before + after[1:], content + content]
        return self.draw.choice([*kinds, self.draw.randbytes(20), b""])

    def table(self, header: list[str], rows: int) -> str:
        """Return a CSV file of which header, separator, cells and number of cells are often wrong."""
        separator = self.draw.choice([",", ",", ",", ";", "\t"])
        header = [self.draw.choice(CELLS) if self.draw.random() < 0.1 else name for name in header]
        lines = [header]
        for _ in range(rows):
            cells = [self.draw.choice(CELLS if self.draw.random() < 0.2 else SENTENCES) for _ in header]
            lines.append(cells[: self.draw.choice([99, 99, 99, 1])])
        return "\n".join(separator.join(line) for line in lines)


def evaluate(case: Case, model: str = "bert", pairs: str = "pairs.csv", pooling: str = "cls") -> list[str]:
    return ["evaluate", case.path(model), "--pooling", pooling, "--pairs", case.path(pairs)]


def encode(case: Case, texts: str = "train.txt") -> list[str]:
    return ["encode", case.path("bert"), case.path(texts), "--pooling", "cls", "--to", case.path("vectors")]


def train(case: Case, base: str = "bert", texts: str = "train.txt") -> list[str]:
    keys = ["--base_model", case.path(base), "--train_file", case.path(texts), "--output_dir", case.path("run")]
    return ["train", "simcse-bert-base-uncased", *keys, *SMALL]


def broken_base(case: Case) -> list[list[str]]:
    """A plain encoder with a broken configuration or tokenizer, to evaluate and to train on."""
    base = case.draw.choice(["bert", "roberta"])
    file = case.draw.choice(["config.json", "config.json", "tokenizer.json", "tokenizer_config.json"])
    case.break_json(case.directory / base / file)
    pooling = case.draw.choice(["cls", "mean", "first_last_mean"])
    return [evaluate(case, base, pooling=pooling), train(case, base)]


def broken_checkpoint(case: Case) -> list[list[str]]:
    """A checkpoint of the zoo of which one file is broken, to verify, evaluate and encode with."""
    names = ["config", "config", "tokenizer", "tokenizer_config", "fingerprint", "modules"]
    case.break_json(case.directory / "model" / f"{case.draw.choice(names)}.json")
    model = case.path("model")
    return [
        ["verify", model],
        ["evaluate", model, "--pairs", case.path("pairs.csv")],
        ["encode", model, case.path("train.txt"), "--to", case.path("vectors")],
    ]


def broken_recipe(case: Case) -> list[list[str]]:
    """A YAML file with keys and values that no recipe has."""
    keys = [*recipe_keys(), *method_keys(case.draw.choice(["simcse", "sgopt", "l2pcsr", "prdsimcse", "diffaug"]))]
    keys = [key for key in keys if key not in ("output_dir", "report_to", "max_train_sentences")]
    values = {case.draw.choice(keys): case.draw.choice(ODD) for _ in range(case.draw.choice([1, 1, 2, 3]))}
    text = yaml.safe_dump({"method": "simcse", "base_model": case.path("bert"), **values}, allow_unicode=True)
    if case.draw.random() < 0.2:
        text = case.damaged(text.encode()).decode("utf-8", "replace")
    Path(case.path("mine.yaml")).write_text(text, encoding="utf-8")
    given = ["--train_file", case.path("train.txt"), "--output_dir", case.path("run"), "--report_to", "none"]
    return [
        ["train", case.path("mine.yaml"), "--help"],
        ["train", case.path("mine.yaml"), *given, "--eval_data", "none", "--max_steps", "1"],
    ]


def broken_texts(case: Case) -> list[list[str]]:
    """Training sentences, labelled pairs or scored pairs that are not what they should be."""
    name = case.draw.choice(["text.csv", "text.tsv", "text.txt", "text.jsonl", "pairs.csv", "labelled.csv"])
    labelled = ["premise", "hypothesis", "label"]
    header = {"pairs.csv": ["sentence1", "sentence2", "score"], "labelled.csv": labelled}
    columns = header.get(name, case.draw.choice([["text"], ["text", "text"], ["a", "b"]]))
    text = case.table(columns, case.draw.randrange(6))
    if name == "text.jsonl":
        rows = [{case.draw.choice(["text", "a"]): case.draw.choice(ODD)} for _ in range(case.draw.randrange(5))]
        text = "\n".join(map(json.dumps, rows))
    content = text.encode("utf-8", "replace")
    Path(case.path(name)).write_bytes(case.damaged(content) if case.draw.random() < 0.2 else content)
    if name == "pairs.csv":
        return [evaluate(case, pairs=name), [*train(case), "--dev_file", case.path(name)]]
    if name == "labelled.csv":
        keys = ["--nli_file", case.path(name), "--nli_columns", *labelled, "--nli_classes", "3"]
        return [[*train(case), *keys, "--nli_steps", "1", "--nli_batch_size", "4"]]
    streaming = ["--streaming"] if case.draw.random() < 0.3 else []
    return [[*train(case, texts=name), *streaming], encode(case, name)]


def broken_results(case: Case) -> list[list[str]]:
    """Results files and their recipes, to print and to continue."""
    results = case.path("results.json")
    case.break_json(Path(results))
    kind = case.draw.choice(["markdown", "latex", "csv"])
    return [["table", results, "--format", kind], [*evaluate(case), "--out", results]]


def odd_arguments(case: Case) -> list[list[str]]:
    """Commands with values that they do not expect."""
    odd = [str(value) for value in ODD if value != "\x00"]
    odd += [case.path("bert"), case.path("train.txt"), "nothing-here"]
    commands = [
        [*evaluate(case), "--batch_size", "4"],
        encode(case),
        train(case),
        ["table", case.path("results.json"), "--format", "csv"],
        ["verify", case.path("model")],
        ["audit", case.path("model")],
        ["publish", case.path("model"), "--to", "me/model"],
    ]
    words = case.draw.choice(commands)
    return [[*words[: (place := case.draw.randrange(1, len(words)))], case.draw.choice(odd), *words[place + 1 :]]]


KINDS = (broken_base, broken_checkpoint, broken_recipe, broken_texts, broken_results, odd_arguments)


def answer(words: list[str]) -> str | None:
    """Run a command; return what is wrong with its answer, or None."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(words)
    except SystemExit as stop:
        lines = err.getvalue().splitlines()
        if stop.code in (None, 0):
            return None
        if stop.code != 2 or not lines or not lines[-1].startswith("error: "):
            return f"exit code {stop.code} with {lines[-1:]}"
        return f"a line of {len(lines[-1])} characters" if len(lines[-1]) > 2000 else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/training/" in frame.filename or "/modeling/" in frame.filename]
        last = (ours or frames)[-1]
        where = f"{Path(last.filename).name}:{last.name}"
        return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:150]}"
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    return None


def checksums(directory: Path) -> dict[str, str]:
    """Return the checksums of the files in a directory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def originals(directory: Path) -> Path:
    """Write the files that work."""
    for kind in ("bert", "roberta"):
        save_base(kind, directory / kind)
    tiny_repository(directory / "model")
    (directory / "train.txt").write_text("\n".join(SENTENCES[:12]) + "\n", encoding="utf-8")
    write_pairs(directory / "pairs.csv")
    words = ["evaluate", str(directory / "bert"), "--pooling", "cls", "--pairs", str(directory / "pairs.csv")]
    assert answer([*words, "--out", str(directory / "results.json")]) is None
    return directory


def fuzz(minutes: float, out: Path, start: int) -> None:
    """Run cases until the time is over, and write the counts and an example of everything that fell."""
    tried: Counter[str] = Counter()
    fallen: Counter[str] = Counter()
    examples: dict[str, dict] = {}
    end, out = time.monotonic() + 60 * minutes, out.absolute()
    with tempfile.TemporaryDirectory() as directory:
        working = originals(Path(directory, "originals"))
        for number in itertools.count(start):
            make = KINDS[number % len(KINDS)]
            case = Case(working, Path(directory), number)
            os.chdir(case.directory)  # a broken path leads there
            for words in make(case):
                before = checksums(case.directory / "model") | checksums(case.directory / "bert")
                problem = answer(words)
                after = checksums(case.directory / "model") | checksums(case.directory / "bert")
                if problem is None and before != after:
                    problem = "changed the files that it was given"
                tried[make.__name__] += 1
                if problem:
                    fallen[make.__name__] += 1
                    example = {"case": number, "words": words, "problem": problem, "times": 0}
                    examples.setdefault(":".join(problem.split(":")[:2]), example)["times"] += 1
            os.chdir(directory)
            shutil.rmtree(case.directory)
            over = time.monotonic() >= end
            if over or number % 20 == 19:
                report = {"cases": number + 1 - start, "tried": tried, "fallen": fallen, "examples": examples}
                out.write_text(json.dumps(report, indent=2), encoding="utf-8")
            if over:
                break
    print(f"{sum(tried.values())} commands tried, {sum(fallen.values())} fell")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"))
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    fuzz(options.minutes, options.out, options.start)
