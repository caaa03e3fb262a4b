"""Find SentEval's files in a directory or in an archive on the Hub, and read their lines."""

from __future__ import annotations

import math
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO, NamedTuple, cast

from huggingface_hub import cached_assets_path, constants, hf_hub_download
from huggingface_hub.errors import HTTPError

from ...errors import UserError, one_line
from ...files import refuse_utf16
from ...hub import answers, is_inside, within_time

# SimCSE's copy. Every receipt contains its commit, and the rows of every task are counted: in an early commit, SUBJ
# had only twenty of its 5,000 subjective sentences.
REPOSITORY, ARCHIVE = "princeton-nlp/datasets-for-simcse", "senteval.tar"


class SentEval(NamedTuple):
    """The place of SentEval's files."""

    root: Path  # the directory with `STS/`, `SICK/`, `MR/` and the others
    name: str = "SentEval"  # the layout or the Hub repository, for receipts, in which a local path would mean nothing
    revision: str | None = None  # the commit on the Hub

    def source(self, path: Path) -> str:
        return f"{self.name} {path.relative_to(self.root)}"


def find_senteval(data: str) -> SentEval:
    """Find SentEval's files.

    Args:
        data: `hub`, or a directory in SentEval's layout, or the directory with `downstream/` inside.
    """
    if data == "hub":
        return _from_hub()
    directory = Path(data)
    root = directory / "downstream" if (directory / "downstream").is_dir() else directory
    if not root.is_dir():
        raise UserError(f"{directory} is not a directory in SentEval's layout; give one with STS/ and SICK/ inside")
    return SentEval(root)


def _from_hub() -> SentEval:
    """Download the newest archive and extract it once, into the cache of `huggingface_hub`."""
    try:
        archive = Path(
            within_time(
                f"the download of {REPOSITORY}",
                lambda: hf_hub_download(
                    REPOSITORY,
                    ARCHIVE,
                    repo_type="dataset",
                    local_files_only=not answers(REPOSITORY, constants.ENDPOINT, "dataset"),
                ),
            )
        )
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(
            f"{REPOSITORY}: {ARCHIVE} could not be loaded from the Hub ({type(error).__name__}); give a directory in "
            "SentEval's layout instead (--eval_data DIR in training, --data DIR in evaluation)"
        ) from error
    commit = archive.parent.name
    root = cached_assets_path("csezoo", namespace=REPOSITORY, subfolder=commit) / "senteval"
    if not root.is_dir():
        with tempfile.TemporaryDirectory(dir=root.parent) as partial:
            extracted = Path(partial) / root.name
            try:
                with tarfile.open(archive) as files:
                    extract(files, extracted)
            except (tarfile.TarError, EOFError) as error:
                raise UserError(f"{archive} is damaged ({one_line(error)}); remove it and try again") from error
            try:
                extracted.rename(root)
            except OSError:
                if not root.is_dir():  # otherwise another process was faster
                    raise
    return SentEval(root, REPOSITORY, commit)


def extract(files: tarfile.TarFile, directory: Path) -> None:
    """Extract the regular files of an archive. (`extractall` has no safe filter before Python 3.11.4.)

    Raises:
        tarfile.TarError: a member is outside of the directory, or is a link or a device.
    """
    for member in files:
        if not is_inside(member.name) or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name} is outside of the archive or not a regular file")
        if member.isfile():
            path = directory / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(cast(IO[bytes], files.extractfile(member)), file)


def check_count(name: str, what: str, expected: int, found: int) -> None:
    """Refuse data that does not have the released number of rows."""
    if found != expected:
        raise UserError(f"{name}: expected {expected} {what}, got {found}; download the data again")


def respaced(sentence: str) -> str:
    """Split a sentence at white space and join the tokens by single spaces, as SentEval does."""
    return " ".join(sentence.split())


def finite(score: str | float) -> float:
    """Convert a score to a number."""
    if not math.isfinite(float(score)):
        raise ValueError
    return float(score)


def read_text(path: Path, encoding: str = "utf-8-sig") -> str:
    """Read a text file."""
    try:
        text = path.read_text(encoding=encoding)
        refuse_utf16(path, text[:4096].encode())
        return text
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); convert the file") from None


def numbered_lines(path: Path, encoding: str = "utf-8-sig") -> list[tuple[int, str]]:
    """Read the lines of one of SentEval's files, numbered from 1."""
    if not path.is_file():
        raise UserError(f"{path} is missing; the data directory must be in SentEval's layout")
    return list(enumerate(read_text(path, encoding).removesuffix("\n").split("\n"), start=1))


def read_pair(path: Path, number: int, line: str, columns: tuple[int, int, int]) -> tuple[str, str, float]:
    """Read the first sentence, second sentence and score from a line of tab-separated columns."""
    cells = line.split("\t")
    try:
        first, second, score = (cells[column] for column in columns)
        return respaced(first), respaced(second), finite(score)
    except (IndexError, ValueError):
        raise UserError(f"{path}, line {number}: expected a sentence pair with a score") from None


def read_sentences(folder: Path, subset: str) -> list[str]:
    """Read both sentences of every pair of one sub-set of a year of STS, with or without a gold score."""
    path = folder / f"STS.input.{subset}.txt"
    return [side for n, line in numbered_lines(path) for side in read_pair(path, n, f"{line}\t0", (0, 1, -1))[:2]]


def read_subset(folder: Path, subset: str) -> list[tuple[str, str, float]]:
    """Read one sub-set of a year of STS. Pairs with an empty line instead of a gold score are left out."""
    sentences, gold = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
    pairs, scores = numbered_lines(sentences), numbered_lines(gold)
    if len(pairs) != len(scores):
        raise UserError(
            f"{sentences} has {len(pairs)} lines, but {gold.name} has {len(scores)}; download the data again"
        )
    scored = [(number, line, score) for (number, line), (_, score) in zip(pairs, scores, strict=True) if score.strip()]
    return [read_pair(sentences, number, f"{score}\t{line}", (1, 2, 0)) for number, line, score in scored]
