"""The STS tasks from a directory in SentEval's layout, from the Hub, and from a user's file."""

import hashlib
import json
import shutil

import pytest

from csezoo.training.errors import UserError
from csezoo.training.evaluation.tasks.names import DEV_TASK, SICKR_DEV_TASK, STS_TASKS
from csezoo.training.evaluation.tasks.senteval import REPOSITORY
from csezoo.training.evaluation.tasks.sts import HUB, load_pairs_file, load_task
from tests.training.senteval_files import YEARS, respaced, text

ROWS = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186}
ROWS |= {"STSBenchmark": 1379, "SICK-R": 4927, DEV_TASK: 1500, SICKR_DEV_TASK: 500}


@pytest.mark.parametrize("name", [*STS_TASKS, DEV_TASK, SICKR_DEV_TASK])
def test_every_task_has_the_rows_it_was_released_with(senteval, name):
    task = load_task(name, str(senteval))
    assert task.name == name
    assert len(task.pairs) == len(task.scores) == len(set(task.pairs)) == ROWS[name]
    assert load_task(name, str(senteval / "downstream")) == task, "the directory or its parent"


@pytest.mark.parametrize("year", YEARS)
def test_a_year_is_one_task_of_all_sub_sets_without_unscored_pairs(senteval, year):
    task = load_task(year, str(senteval))
    expected = [(respaced(text(year, s, n)), float(n % 6)) for s, count in YEARS[year].items() for n in range(count)]
    assert list(zip(task.pairs, task.scores, strict=True)) == expected


def test_quotes_in_sts_b_are_literal(senteval):
    for name, part in ((DEV_TASK, "dev"), ("STSBenchmark", "test")):
        task = load_task(name, str(senteval))
        assert task.pairs[7] == (f'"{part} 7', 'a "b" c')
        assert set(task.scores) == {n + 0.5 for n in range(6)}


def test_the_header_of_sick_is_not_a_pair(senteval):
    task = load_task("SICK-R", str(senteval))
    assert (task.pairs[0], task.scores[0]) == (respaced(text("SICK", 0)), 1.6)


def without_a_row(lines):
    return [*lines[:9], *lines[10:]]


def second_sentence_lost(lines):
    return [*lines[:9], lines[9].split("\t")[0], *lines[10:]]


def score_unreadable(lines):
    return [*lines[:9], "five", *lines[10:]]


@pytest.mark.parametrize(
    ("name", "pattern", "change", "parts"),
    [
        ("STSBenchmark", "STSBenchmark/sts-test.csv", without_a_row, ["expected 1379 pairs", "got 1378"]),
        ("STS12", "STS12-en-test/STS.input.MSRvid.txt", without_a_row, ["749", "750", "MSRvid"]),
        ("STS12", "STS12-en-test/STS.gs.MSRvid.txt", without_a_row, ["750", "749", "MSRvid"]),
        ("STS13", "STS13-en-test/STS.*.FNWN.txt", without_a_row, ["expected 1500 pairs", "got 1499"]),
        ("STSBenchmark", "STSBenchmark/sts-test.csv", second_sentence_lost, ["sts-test.csv, line 10"]),
        ("STS14", "STS14-en-test/STS.input.images.txt", second_sentence_lost, ["input.images.txt, line 10"]),
        ("STS14", "STS14-en-test/STS.gs.images.txt", score_unreadable, ["images.txt, line 10"]),
        (DEV_TASK, "STSBenchmark/sts-dev.csv", lambda lines: ["\ufffd"], ["sts-dev.csv, line 1"]),
    ],
)
def test_damaged_data_is_refused_with_the_place_of_the_damage(senteval, tmp_path, name, pattern, change, parts):
    copy = shutil.copytree(senteval, tmp_path / "senteval")
    for path in (copy / "downstream" / "STS").glob(pattern):
        lines = path.read_text(encoding="utf-8").split("\n")
        path.write_text("\n".join(change(lines)), encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_task(name, str(copy))
    for part in parts:
        assert part in str(error.value)


def test_a_missing_file_or_directory_is_named(senteval, tmp_path):
    copy = shutil.copytree(senteval, tmp_path / "senteval")
    for file in ("STS/STS15-en-test/STS.gs.belief.txt", "SICK/SICK_test_annotated.txt"):
        path = copy / "downstream" / file
        path.unlink()
        with pytest.raises(UserError, match=f"{path} is missing; the data directory must be in SentEval's layout"):
            load_task("STS15" if "STS15" in file else "SICK-R", str(copy))
    with pytest.raises(UserError, match="nowhere is not a directory in SentEval's layout"):
        load_task("STS12", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", [*STS_TASKS, DEV_TASK, SICKR_DEV_TASK])
def test_without_the_hub_the_error_suggests_a_directory(name):
    with pytest.raises(UserError) as error:
        load_task(name, "hub")
    repository = HUB[name][0] if name in HUB else REPOSITORY
    for part in (repository, "--eval_data DIR", "--data DIR"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["STS16", "SICK-R", DEV_TASK])
def test_a_receipt_identifies_the_pairs_and_not_the_machine(senteval, name):
    task = load_task(name, str(senteval))
    receipt = task.receipt()
    content = "".join(f"{a}\t{b}\t{s:g}\n" for (a, b), s in zip(task.pairs, task.scores, strict=True))
    assert receipt["sha256"] == hashlib.sha256(content.encode()).hexdigest()
    assert (receipt["rows"], receipt["revision"]) == (ROWS[name], None)
    assert receipt["dataset"].startswith("SentEval ") and str(senteval) not in json.dumps(receipt)
    task.scores[0] += 0.25
    assert task.receipt()["sha256"] != receipt["sha256"]


def test_a_users_csv_file_may_have_quotes_and_any_column_order(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text('\ufeffscore,sentence1,id,sentence2\n4,"a, b",1,c  d\n0.5,"say ""hi""",2,NA\n', encoding="utf-8")
    task = load_pairs_file(str(path))
    assert task.pairs == [("a, b", "c d"), ('say "hi"', "NA")]
    assert (task.name, task.scores, task.receipt()["dataset"]) == ("pairs", [4.0, 0.5], "pairs.csv")


def test_a_cell_may_be_longer_than_the_limit_of_the_library(tmp_path):
    long = "a" * 140_000
    (tmp_path / "pairs.csv").write_text(f"sentence1,sentence2,score\n{long},b,1\nc,d,2\n", encoding="utf-8")
    assert load_pairs_file(str(tmp_path / "pairs.csv")).pairs == [(long, "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"sentence1,sentence2\na,b\n", "has no column score"),
        (b"sentence1,sentence2,score\na,b,1\nc,d,high\n", "line 3: score 'high' is not a number"),
        (b"sentence1,sentence2,score\na,b,nan\nc,d,1\n", "line 2: score 'nan' is not a number"),
        (b"score,sentence1,sentence2\n1,a\n", "line 2: the number of cells differs"),
        (b"sentence1,sentence2,score\na,b,c,1\n", "line 2: the number of cells differs"),
        (
            b"sentence1,sentence2,score\na,b,1\nc,d,1\n",
            "has no two different scores, which a correlation needs; grade",
        ),
        (b"sentence1,sentence2,score\nd\xe9j\xe0,b,1\n", "not UTF-8"),
        ("sentence1,sentence2,score\na,b,1\n".encode("utf-16-le"), "not UTF-8 (it seems to be UTF-16"),
        (b'sentence1,sentence2,score\n"a,b,1\n' + 20000 * b"c,d,2.5\n", "the number of cells differs"),
        (b'[{"sentence1": "' + 140_000 * b"a" + b'"}]', "has no column sentence1, sentence2, score"),
    ],
)
def test_an_unusable_file_of_pairs_is_named_with_the_reason(tmp_path, content, part):
    path = tmp_path / "pairs.csv"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        load_pairs_file(str(path))
    assert str(path) in str(error.value) and part in str(error.value)
