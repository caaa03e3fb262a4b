"""Training sentences from every supported file, and the errors of files that cannot be used."""

import gzip
import json
import logging
import os

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from csezoo.training.data.collation import tokenize_once
from csezoo.training.data.texts import load_sentences, stream_texts, streamed_files
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import SENTENCES, tiny_tokenizer
from tests.hub_server import HubServer
from tests.interpreters import run_python
from tests.refusals import refusal

TRIPLETS = [("a cat sits", "an animal", "no cat"), ('she said, "hi"', "a greeting", "silence"), ("NA", "None", "null")]
COLUMNS = ["sent0", "sent1", "hard_neg"]
STREAM = {"streaming": True, "max_steps": 1}
HALF_A_PAIR = ["could not be read", "surrogates not allowed"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Gives each test its own cache of `datasets`."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def load(tmp_path):
    """Writes a file, loads it and returns its rows as tuples."""

    def load(name: str, content: str | bytes, **keys):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [tuple(row.values()) for row in load_sentences(make_recipe({"train_file": str(path), **keys}))]

    return load


def quoted(cells):
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def written(suffix: str, rows: list[tuple], columns: list[str], tmp_path) -> bytes:
    """Return the rows as a file with this suffix."""
    if suffix.endswith(".gz"):
        return gzip.compress(written(suffix.removesuffix(".gz"), rows, columns, tmp_path))
    if suffix == ".txt":
        return "".join(f"{text}\n" for (text,) in rows).encode()
    if suffix == ".csv":
        return "".join(quoted(row) for row in [columns, *rows]).encode()
    if suffix == ".tsv":
        return "".join("\t".join(row) + "\n" for row in [columns, *rows]).encode()
    if suffix == ".jsonl":
        return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows).encode()
    table = datasets.Dataset.from_dict(dict(zip(columns, zip(*rows, strict=True), strict=True)))
    table.to_parquet(tmp_path / "written")
    return (tmp_path / "written").read_bytes()


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv", ".jsonl", ".parquet", ".txt.gz", ".csv.gz", ".jsonl.gz"])
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_every_format_gives_the_same_sentences(load, tmp_path, suffix, case):
    rows = [(text,) for text, *_ in TRIPLETS]
    assert load(f"train{case(suffix)}", written(suffix, rows, ["text"], tmp_path)) == rows


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_columns_become_anchor_positive_and_hard_negative(load, tmp_path, suffix, views):
    content = written(suffix, TRIPLETS, COLUMNS, tmp_path)
    assert load(f"train{suffix}", content, text_columns=COLUMNS[:views]) == [row[:views] for row in TRIPLETS]


@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_of_columns_may_stand_in_one_line(load, indent):
    columns = {"sent0": ["a", "b"], "sent1": ["c", "d"]}
    assert load("a.json", json.dumps(columns, indent=indent), text_columns=COLUMNS[:2]) == [("a", "c"), ("b", "d")]


def test_blank_lines_are_skipped_and_counted(load, caplog):
    with caplog.at_level(logging.INFO, logger="csezoo"):
        assert load("train.txt", "one\n\n  \t \ntwo\n\n") == [("one",), ("two",)]
    assert "train.txt: 3 blank lines skipped" in caplog.text


def test_a_missing_positive_or_hard_negative_becomes_one_space(load):
    content = "sent0,sent1,hard_neg\na,,c\n ,b,c\nd,e,\n"
    assert load("train.csv", content, text_columns=COLUMNS) == [("a", " ", "c"), ("d", "e", " ")]
    rows = '{"sent0": "a", "sent1": null}\n{"sent0": "b", "sent1": "c"}\n'
    assert load("train.jsonl", rows, text_columns=COLUMNS[:2]) == [("a", " "), ("b", "c")]


def test_blank_positives_and_hard_negatives_are_counted(load, caplog):
    load("train.csv", "sent0,sent1,hard_neg\na,,c\n ,b,c\nd, ,\n", text_columns=COLUMNS)
    assert "train.csv: 2 texts in sent1 are blank, and are trained on as such" in caplog.text
    assert "train.csv: 1 texts in hard_neg are blank" in caplog.text


def test_na_and_none_are_read_as_words(load):
    words = ["NA", "None", "null", "nan", "N/A", "-inf"]
    assert load("train.csv", "\n".join(["text", *words])) == [(word,) for word in words]


def test_the_default_column_is_text_or_the_only_one(load):
    assert load("two.csv", "id,text\n1,a\n2,b\n") == [("a",), ("b",)]
    assert load("one.csv", "sentence\na\nb\n") == [("a",), ("b",)]


def test_max_train_sentences_keeps_the_first_rows(load):
    assert load("train.txt", "a\nb\nc\n", max_train_sentences=2) == [("a",), ("b",)]
    assert load("train.txt", "a\n", max_train_sentences=2) == [("a",)]
    for stream in ({}, {"streaming": True, "max_steps": 1}):
        assert load("blank.txt", "a\n\nb\nc\n", max_train_sentences=3, **stream) == [("a",), ("b",)], (
            "blank ones count"
        )


def test_a_quotation_mark_in_tsv_is_part_of_the_text(load, tmp_path):
    """As in the files of GLUE: otherwise all rows up to the next one would become one text."""
    rows = [('"Hello, he said.', "a"), ("the cat", "b"), ('left"', "c")]
    content = written(".tsv", rows, ["text", "id"], tmp_path)
    for stream in ({}, {"streaming": True, "max_steps": 1}):
        assert load("train.tsv", content, **stream) == [(text,) for text, _ in rows]
    assert list(stream_texts(str(tmp_path / "train.tsv"))) == [text for text, _ in rows]


def test_a_stream_gives_the_same_sentences(load, tmp_path):
    stream = {"streaming": True, "max_steps": 1}
    assert load("train.txt", "a\n\nb\n", **stream) == [("a",), ("b",)]
    content = written(".csv", TRIPLETS, COLUMNS, tmp_path)
    assert load("train.csv", content, text_columns=COLUMNS, **stream) == TRIPLETS


UTF_16 = ["not UTF-8 (it seems to be UTF-16 or UTF-32); convert the file"]
LOOKS_LIKE_NUMBERS = ["007", "1.50", "1e5", "True", " 5", "+1", "NA", "2020-01-01", str(2**70)]


@pytest.mark.parametrize("stream", [{}, {"streaming": True, "max_steps": 1}])
@pytest.mark.parametrize("name", ["train.csv", "train.tsv", "train.csv.gz", "train.txt", "train.jsonl"])
@pytest.mark.parametrize("source", ["train_file", "dataset"])
def test_text_is_text_whatever_a_block_of_rows_looks_like(tmp_path, source, name, stream):
    """pandas guesses types for 10,000 rows at once."""
    words, numbers = ["a word"] * 10_000, LOOKS_LIKE_NUMBERS
    directory = tmp_path / "texts"
    directory.mkdir()
    for each in (words + numbers, numbers):
        shown = [json.dumps({"text": text}) for text in each] if "json" in name else each
        lines = "\n".join([*(["text"] if "sv" in name else []), *shown]).encode() + b"\n"
        (directory / name).write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
        keys = {"train_file": str(directory / name)} if source == "train_file" else {"dataset": str(directory)}
        assert [row["0"] for row in load_sentences(make_recipe({**keys, **stream}))] == each


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["train[12].txt", "train?.txt", "t*.txt"])
def test_a_name_with_the_characters_of_a_pattern_is_the_name_of_one_file(load, name, streaming):
    load("train1.txt", "of another file\n")
    keys = {"streaming": True, "max_steps": 1} if streaming else {}
    assert load(name, "of this file\n", **keys) == [("of this file",)]


@pytest.mark.parametrize(
    ("name", "content", "keys", "parts"),
    [
        ("a.csv", "x,y\na,b\n", {"text_columns": "sent0"}, ["no column sent0, only x, y", "--text_columns"]),
        ("a.csv", "x,y\na,b\n", {}, ["has the columns x, y", "--text_columns"]),
        ("a.jsonl", '{"x": "a", "y": 1}\n', {"text_columns": "x,y"}, ["column y must be text, got int64"]),
        ("a.csv", "text;y\na;1\n", {}, ["its header 'text;y' seems to be separated by ';'", "read with ','"]),
        ("a.csv", "text\ty\na\t1\n", {}, ["separated by '\\t'"]),
        ("a.tsv", "text,y\na,1\n", {}, ["separated by ','", "read with '\\t'"]),
        ("a.csv", "x,y,x,y\na,b,c,d\n", {"text_columns": "x,y"}, ["its header has the column x twice"]),
        ("a.txt", "", {}, ["is empty"]),
        ("a.txt", "\n \n", {}, ["has no sentences"]),
        ("a::b.txt", "a cat\n", {}, ["has `::` in its name", "rename it"]),
        ("a.csv", "text\n", {}, ["could not be read"]),
        ("a.pdf", "x", {}, ["must end in one of .txt, .csv, .tsv, .jsonl, .json, .parquet", ".gz"]),
        ("a.txt", b"one\ntwo\nd\xe9j\xe0 vu\n", {}, ["line 3", "not UTF-8", "byte 1"]),
        ("a.csv", b"text\none\nd\xe9j\xe0 vu\n", {}, ["line 3", "not UTF-8"]),
        *((f"a{suffix}", "text\none\n".encode("utf-16-le"), {}, UTF_16) for suffix in (".txt", ".csv", ".jsonl")),
        ("a.txt", "one\n".encode("utf-32-be"), {}, UTF_16),
        ("a.txt.gz", gzip.compress("one\n".encode("utf-16-be"), mtime=0), {}, UTF_16),
        ("a.jsonl", b'{"text": "one"}\n{"text": "d\xe9j\xe0 vu"}\n', {}, ["line 2", "not UTF-8"]),
        ("a.jsonl", '{"text": "one"}\n{"text": \n', {}, ["could not be read"]),
        ("a.jsonl", '{"text": ["one"]}\nnull\n', {}, ["row 2 is no object"]),
        *(("a.jsonl", '{"text": "one \\ud83d"}\n', keys, HALF_A_PAIR) for keys in ({}, STREAM)),
        ("a.parquet", "PAR", {}, ["could not be read"]),
        ("a.txt.gz", gzip.compress(b"one\n" * 999, mtime=0)[:25], {}, ["could not be read"]),
        ("a.csv", "text\nhello, world\nbye\n", {}, ["could not be read"]),  # a cell without a column
        ("a.csv", "text\nbye\nhello, world\n", {}, ["could not be read", "line 3", "a comma in it must be in quotes"]),
    ],
)
def test_the_error_names_the_file_and_the_reason(load, name, content, keys, parts, caplog):
    line = refusal(load, name, content, **keys)
    for part in [name, *parts]:
        assert part in line
    assert "Failed to read" not in caplog.text, "said once"


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    for path, reason in ((tmp_path / "absent.txt", "does not exist"), (tmp_path, "is not a file")):
        assert f"{path} {reason}" in refusal(load_sentences, make_recipe({"train_file": str(path)}))
    assert "--train_file" in refusal(load_sentences, make_recipe({}))


def test_a_column_that_is_named_twice_is_refused(load):
    assert refusal(load, "a.csv", "a,b\nx,y\n", text_columns="a,a") == (
        "text_columns: a is given twice; give different columns"
    )


def test_only_the_columns_in_use_must_differ_and_a_separator_may_be_in_a_name(load):
    assert load("a.csv", "text,,\nx,1,2\n") == [("x",)]
    assert load("b.csv", "a;b\nx\n", text_columns="a;b") == [("x",)]


def test_more_than_three_columns_are_refused(load):
    assert "text_columns: expected one to three columns, got 4" in refusal(
        load, "a.csv", "a,b,c,d\nw,x,y,z\n", text_columns="a,b,c,d"
    )


def test_a_grade_is_no_text(load):
    content = "sentence1,sentence2,score\na cat,a dog,4.8\n"
    assert "give them as --dev_file" in refusal(load, "a.csv", content, text_columns="sentence1,sentence2,score")


LOAD = """
import sys, json
from csezoo.training.data.texts import load_sentences
from csezoo.training.errors import UserError
from csezoo.training.recipes import make_recipe
answers = []
for keys in json.loads(sys.argv[1]):
    try:
        answers.append([row["0"] for row in load_sentences(make_recipe(keys))])
    except UserError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def loaded_by_a_client(hub, home, *recipes):
    """The texts of each recipe, or the line with which it is refused, all in one new process."""
    asked = [{"dataset": "zoo/texts", **keys} for keys in recipes or [{}]]
    done = run_python("-c", LOAD, json.dumps(asked), **hub.environment(home))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ON_THE_HUB = [("train.csv", {"dataset_file": "train.csv"}), ("train.csv.gz", STREAM), ("train.jsonl", {})]
ON_THE_HUB += [("train.jsonl.gz", {}), ("train.jsonl.gz", STREAM), ("train.json", {})]


def test_a_text_of_a_file_on_the_hub_is_text(tmp_path):
    objects = [{"id": number, "text": text, "more": [{}]} for number, text in enumerate(LOOKS_LIKE_NUMBERS)]
    recipes = []
    with HubServer() as hub:
        for number, (name, keys) in enumerate(ON_THE_HUB):
            rows = ["text", *LOOKS_LIKE_NUMBERS] if "csv" in name else map(json.dumps, objects)
            content = (json.dumps(objects, indent=1) if name.endswith(".json") else "\n".join(rows) + "\n").encode()
            content = gzip.compress(content) if name.endswith(".gz") else content
            hub.commit(f"zoo/texts-{number}", "texts", {name: content})
            recipes.append({"dataset": f"zoo/texts-{number}", **keys})
        assert loaded_by_a_client(hub, tmp_path, *recipes) == [LOOKS_LIKE_NUMBERS] * len(ON_THE_HUB)


def test_a_hub_that_cannot_be_reached_is_asked_once_for_a_data_set_and_then_the_cache_is_read(tmp_path):
    with HubServer() as hub:
        hub.commit("zoo/texts", "texts", {"train.csv": b"text\n007\n"})
        hub.cuts["/zoo/"] = "before"
        (line,) = loaded_by_a_client(hub, tmp_path)
        assert hub.url in line and "does not answer, and the cache has no copy); give --train_file" in line
        assert hub.requests == ["HEAD /datasets/zoo/texts/resolve/main/README.md"]
        hub.cuts.clear()
        assert loaded_by_a_client(hub, tmp_path) == [["007"]]
        hub.cuts["/zoo/"] = "before"
        hub.requests.clear()
        assert loaded_by_a_client(hub, tmp_path) == [["007"]]
        assert len(hub.requests) == 1


def test_a_number_or_a_list_in_json_where_a_text_is_asked_for_is_one_line(load, tmp_path):
    line = '{"text": 7, "more": [1]}\n'
    found = {"int64": {}, "lists, objects or values of several types": {"text_columns": ["more"]}}
    for kind, keys in found.items():
        assert f"must be text, got {kind}" in refusal(load, "a.jsonl", line, **keys)
        assert "must be text, got" in refusal(load, "a.jsonl", line, **keys, **STREAM)
    with HubServer() as hub:
        hub.commit("zoo/texts", "texts", {"train.jsonl": line.encode()})
        lines = loaded_by_a_client(hub, tmp_path, *found.values())
    assert all(f"must be text, got {kind}" in said for kind, said in zip(found, lines, strict=True))


LINES = '\n{"text": "a"}\n\n{"text": "b"}'
LIST = '[\n {"text": "a"},\n {"text": "b"}\n]'
COLUMNS_OF_JSON = '{\n"text": ["a", "b"]}'


@pytest.mark.parametrize("content", [LINES, LIST, LIST.replace("\n", ""), COLUMNS_OF_JSON])
def test_json_may_be_lines_a_list_or_columns(load, content):
    assert load("a.json", content) == [("a",), ("b",)]
    assert load("b.json", '{\n"text":\n"ab"}') == [("ab",)], "one object"


@pytest.mark.parametrize("stream", [{}, STREAM])
def test_a_column_may_be_missing_in_the_first_objects(load, stream):
    rows = '{"id": 1}\n{"id": 2, "text": "a cat"}\n{"text": "a dog"}\n'
    assert load("a.jsonl", rows, **stream) == [("a cat",), ("a dog",)]


@pytest.mark.parametrize("streaming", [False, True])
def test_the_error_of_an_unreachable_dataset_suggests_a_local_file(streaming):
    keys = {"dataset": "zoo/sentences", "dataset_file": "wiki.txt", "streaming": streaming, "max_steps": 1}
    line = refusal(load_sentences, make_recipe(keys))
    assert "zoo/sentences/wiki.txt" in line and "--train_file" in line


def tokenised(path, kind, tokenizer=None):
    """Tokenise as a run does, with a new tokenizer each time unless one is given."""
    cut = {"tokenizer": tokenizer or tiny_tokenizer(kind), "length": 6}
    return tokenize_once(load_sentences(make_recipe({"train_file": str(path)})), **cut)


def test_sentences_are_tokenised_without_special_tokens_and_truncated(train_file, kind):
    tokenizer = tiny_tokenizer(kind)
    expected = [tokenizer(text, add_special_tokens=False).input_ids[:6] for text in SENTENCES]
    assert tokenised(train_file, kind)["0"] == expected


def test_tokenised_sentences_are_read_from_the_cache_until_the_file_changes(tmp_path, kind):
    path = tmp_path / "train.txt"
    path.write_text("\n".join(SENTENCES), encoding="utf-8")
    first = tokenised(path, kind)
    (file,) = (entry["filename"] for entry in first.cache_files)
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.arrow")}
    again = tokenised(path, kind)
    assert [entry["filename"] for entry in again.cache_files] == [file]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.arrow")} == files
    path.write_text("\n".join(SENTENCES[1:]), encoding="utf-8")
    assert len(tokenised(path, kind)) == len(SENTENCES) - 1, "a changed file is read again"


def test_texts_that_a_tokenizer_cut_before_do_not_change_what_is_read_from_the_cache(tmp_path, kind):
    """The first process cuts sentences and then labelled pairs; a resumed one reads the sentences from the cache."""
    for name, texts in (("sentences.txt", SENTENCES), ("pairs.txt", SENTENCES[:9])):
        (tmp_path / name).write_text("\n".join(texts), encoding="utf-8")
    first = tiny_tokenizer(kind)
    tokenised(tmp_path / "sentences.txt", kind, first)
    pairs = tokenised(tmp_path / "pairs.txt", kind, first)
    assert tokenised(tmp_path / "pairs.txt", kind).cache_files == pairs.cache_files


def test_the_side_on_which_texts_are_cut_is_not_read_from_the_cache(train_file, kind):
    sentences = load_sentences(make_recipe({"train_file": str(train_file)}))
    for side in ("right", "left"):
        tokenizer = tiny_tokenizer(kind)
        tokenizer.truncation_side = side
        whole = tokenizer(SENTENCES[0], add_special_tokens=False).input_ids
        cut = tokenize_once(sentences, tokenizer=tokenizer, length=3)["0"][0]
        assert cut == (whole[:3] if side == "right" else whole[-3:])


@pytest.mark.parametrize("name, old, new", [("a.txt", "one\ntwo\n", "six\nten\n"), ("a.csv", "t\none\n", "t\nsix\n")])
def test_a_file_is_known_by_its_content_and_not_by_its_time(tmp_path, name, old, new):
    """Archives and copies keep the time of a file."""
    (tmp_path / "texts").mkdir()
    file, first = tmp_path / "texts" / name, []
    for content in (old, new):
        file.write_text(content, encoding="utf-8")
        os.utime(file, (1e9, 1e9))
        keys = {"text_columns": ["t"]} if name.endswith("csv") else {}
        for source in ({"train_file": str(file)}, {"dataset": str(file.parent)}):
            first.append(load_sentences(make_recipe({**source, **keys}))["0"][0])
    assert first == ["one", "one", "six", "six"]


@pytest.mark.parametrize("stream", [{}, {"streaming": True, "max_steps": 1}])
@pytest.mark.parametrize("splits", [False, True])
def test_a_directory_that_datasets_saved_is_a_data_set(tmp_path, splits, stream):
    saved = datasets.Dataset.from_dict({"text": ["a cat", "007"]})
    (datasets.DatasetDict({"train": saved}) if splits else saved).save_to_disk(tmp_path / "saved")
    recipe = make_recipe({"dataset": str(tmp_path / "saved"), **stream})
    assert [row["0"] for row in load_sentences(recipe)] == ["a cat", "007"]
    assert len(streamed_files(recipe)) == len(stream) // 2


@pytest.mark.parametrize("stream", [{}, {"streaming": True, "max_steps": 1}])
def test_texts_in_the_parquet_files_of_polars_are_texts(tmp_path, stream):
    (tmp_path / "texts").mkdir()
    file = tmp_path / "texts" / "train.parquet"
    pq.write_table(pa.table({"text": pa.array(["a cat", "007"], pa.string_view())}), file)
    for source in ({"train_file": str(file)}, {"dataset": str(file.parent)}):
        assert [row["0"] for row in load_sentences(make_recipe({**source, **stream}))] == ["a cat", "007"]


def test_another_data_set_or_model_forgets_the_files_and_revisions_of_the_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{dataset: zoo/texts, dataset_file: a.txt, dataset_revision: main, base_model: zoo/bert, base_revision: v1}",
        encoding="utf-8",
    )
    recipe = load_recipe(str(file))
    other = load_recipe(str(file), {"dataset": "mydir", "base_model": "mymodel"})
    assert (other.dataset_file, other.dataset_revision, other.base_revision) == (None, None, None)
    given = load_recipe(str(file), {"dataset": "mydir", "dataset_file": "*.txt"})
    assert (given.dataset_file, given.dataset_revision, given.base_revision) == ("*.txt", None, "v1")
    assert load_recipe(str(file), {"dataset": "zoo/texts"}) == recipe


@pytest.mark.parametrize("stream", [{}, {"streaming": True, "max_steps": 1}])
@pytest.mark.parametrize("start", [[None] * 2, ["2020-01-01"] * 3, ["007"]])
def test_a_column_of_json_may_begin_with_null_or_with_dates(load, start, stream):
    """pyarrow decides on the type of a column by its first megabytes."""
    texts = [*start * (24_000 // len(start)), "a cat", "2021-02-03T04:05:06"]
    lines = "".join(json.dumps({"more": "x" * 500, "text": text}) + "\n" for text in texts)
    expected = [(text,) for text in texts if text is not None]
    loaded = load("a.jsonl", lines, **stream)
    assert loaded == expected
    assert load("a.json", json.dumps([{"text": "2020-01-01"}, {}, {"text": "a"}]), **stream)[-1] == ("a",)
