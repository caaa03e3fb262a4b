"""Any input of a user is used, or refused in one line that names it. Hypothesis generates the inputs."""

import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from csezoo.training.data.streams import StreamedBatches
from csezoo.training.data.texts import load_labelled, load_sentences, stream_texts
from csezoo.training.errors import UserError, quoted
from csezoo.training.evaluation.encoders import plain_encoder
from csezoo.training.evaluation.tasks.sts import load_pairs_file
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import SENTENCES
from tests.training.runs import train, values

# The examples of a test share one directory; each overwrites the file.
DRAWN = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Python strings may contain half of a surrogate pair, which is not valid Unicode and is refused.
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner), max_leaves=4
)


@pytest.fixture(scope="module")
def encoder(bases):
    return plain_encoder(str(bases["bert"]), "cls")


def is_one_line(error: Exception) -> bool:
    return bool(str(error)) and "\n" not in str(error)


@DRAWN
@given(texts=st.lists(UNICODE | st.sampled_from(["", " ", "\x00", "😀👩‍🚀", "\u202e", "x" * 100_000]), max_size=4))
def test_any_text_has_a_vector(encoder, texts):
    model, tokenizer = encoder
    vectors = model.encode(texts, tokenizer)
    assert vectors.shape == (len(texts), model.config.hidden_size)
    assert (vectors == vectors).all()


@DRAWN
@given(texts=st.lists(ANYTHING, min_size=1, max_size=4) | ANYTHING)
def test_the_error_names_an_input_that_is_not_text(encoder, texts):
    model, tokenizer = encoder
    try:
        model.encode(texts, tokenizer)
    except (TypeError, ValueError) as error:
        assert str(error).startswith("texts: ") and is_one_line(error)


def test_the_error_names_half_of_a_surrogate_pair_and_a_way_out(encoder):
    model, tokenizer = encoder
    with pytest.raises(ValueError, match=r"texts: item 1, '\\ud800', has half of a surrogate pair; pass text.encode"):
        model.encode(["fine", "\ud800"], tokenizer)


@DRAWN
@given(name=st.sampled_from(["csv", "tsv", "jsonl", "txt", "parquet", "csv.gz", "txt.gz"]), content=st.binary())
def test_any_bytes_as_a_training_file_are_read_or_refused_in_one_line(tmp_path, bases, name, content):
    file = tmp_path / f"drawn.{name}"
    file.write_bytes(content)
    read_or_refused(bases, file)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "a cat", 0.0, 2**64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "a"]), inner, max_size=2),
    max_leaves=5,
)
JSON_LINE = JSON.map(json.dumps) | st.sampled_from(["", "{", "]", '{"text": "a"} {"text": "b"}', "\ufeff"])


@DRAWN
@given(
    lines=st.lists(st.dictionaries(st.sampled_from(["text", "a"]), JSON).map(json.dumps) | JSON_LINE, max_size=4),
    streaming=st.booleans(),
)
@example(lines=['{"text": [null, null], "a": 0}', '{"a": 0.0}'], streaming=False).via("pyarrow.ArrowTypeError")
@example(lines=['{"text": [null, 1], "a": [{"b": []}, "c"]}', "null"], streaming=True).via("AttributeError")
@example(lines=['[{"a": "b"}, 0.5]'], streaming=True).via("TypeError")
@example(lines=["null"], streaming=False).via("a segmentation fault")
@example(lines=['[null, {"text": "a"}]'], streaming=True).via("a segmentation fault")
@example(lines=["[[null], {}]"], streaming=True).via("pandas.errors.Pandas4Warning")
@example(lines=['{"text": ' + "[" * 1000 + "]" * 1000 + "}"], streaming=True).via("RecursionError")
@example(lines=['{"text": ' + "[" * 20_000 + "]" * 20_000 + "}"], streaming=False).via("a segmentation fault")
# pandas fills the shorter of two lists of one line, and warns that a future version will refuse them.
@pytest.mark.filterwarnings("ignore:Constructing a DataFrame from a list of sequences")
def test_any_json_lines_as_a_training_file_are_read_or_refused_in_one_line(tmp_path, bases, lines, streaming):
    file = tmp_path / "drawn.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    read_or_refused(bases, file, **({"streaming": True, "max_steps": 1} if streaming else {}))


def test_a_file_with_very_many_columns_is_refused_at_once(tmp_path):
    file = tmp_path / "wide.csv"
    file.write_text(",".join(map(str, range(300_000))) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="wide.csv has more than 1,000 columns; give a file with fewer"):
        next(stream_texts(str(file)))


def test_a_stream_that_breaks_off_in_its_middle_is_one_line(tmp_path, bases):
    """Its first ten megabytes are read before the row that is no JSON."""
    file = tmp_path / "long.jsonl"
    rows = [json.dumps({"text": "the cat sees the dog . " * 500})] * 1000
    file.write_text("\n".join([*rows, '{"text": '] + rows), encoding="utf-8")
    recipe = {"base_model": str(bases["bert"]), "train_file": str(file), "streaming": True, "max_steps": 1}
    stream = load_sentences(make_recipe({**recipe, "eval_data": "none"}))
    share = {"batch_size": 100, "seed": 0, "rank": 0, "world": 1, "shuffle_buffer": 1}
    batches = StreamedBatches(stream, lambda rows, draws: {}, start=0, **share)
    error = list(itertools.islice(batches, 100))[-1]["error"]
    assert error.startswith(f"{file} could not be read") and is_one_line(error)


def damaged_page(file):
    """Write a Parquet file whose only page has another beginning. The description of the page is sound."""
    pq.write_table(pa.table({"text": SENTENCES}), file, compression="none", use_dictionary=False)
    place = pq.ParquetFile(file).metadata.row_group(0).column(0).data_page_offset
    content = bytearray(file.read_bytes())
    content[place : place + 16] = b"\xff" * 16
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damaged", "keys"),
    [("0", {}), ("1", {"whitening": 8}), ("1", {"flow": True})],
    ids=["before training", "for the whitening after it", "for the flow after it"],
)
def test_a_damaged_page_of_a_stream_is_one_line_wherever_it_is_read(tmp_path, bases, dev_file, damaged, keys):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    sentences = SENTENCES * 6  # more than are read at once
    for name in ("0", "1"):
        pq.write_table(pa.table({"text": sentences}), data / f"{name}.parquet")
    damaged_page(data / f"{damaged}.parquet")
    recipe = values(bases["bert"], "", dev_file, run, max_steps=1, streaming=True, shuffle_buffer=16, **keys)
    # With a limit, the files are read in order.
    recipe |= {"train_file": None, "dataset": str(data), "max_train_sentences": len(sentences) + 1}
    with pytest.raises(UserError, match="^the stream could not be read") as error:
        train(recipe)
    assert is_one_line(error.value)
    assert (run / "checkpoints").is_dir() == (damaged == "1")


def read_or_refused(bases, file, **keys):
    recipe = make_recipe({"base_model": str(bases["bert"]), "train_file": str(file), "eval_data": "none", **keys})
    try:
        rows = list(load_sentences(recipe))  # a stream is read here
    except UserError as error:
        assert is_one_line(error)
    else:
        assert all(isinstance(text, str) for row in rows for text in row.values())


@pytest.mark.parametrize("keys", [{}, {"max_train_sentences": 1}, {"streaming": True}])
def test_one_training_sentence_is_refused(tmp_path, bases, train_file, keys):
    """It has no negatives: the loss would be 0 and the model would not change."""
    file = tmp_path / "one.txt"
    file.write_text("a cat sits\n", encoding="utf-8")
    recipe = {"base_model": str(bases["bert"]), "eval_data": "none", "max_steps": 1, "report_to": "none", **keys}
    recipe |= {"train_file": str(train_file if "max_train_sentences" in keys else file)}
    with pytest.raises(UserError, match="the training data has one sentence; give two or more"):
        train(recipe, output_dir=str(tmp_path / "run"))


def test_a_batch_of_one_sentence_is_refused_if_nothing_is_learnt_from_it(tmp_path, bases, train_file):
    recipe = {"base_model": str(bases["bert"]), "eval_data": "none", "max_steps": 1, "report_to": "none"}
    recipe |= {"train_file": str(train_file), "batch_size": 1, "output_dir": str(tmp_path / "run")}
    with pytest.raises(UserError, match="batch_size: 1 leaves a sentence without negatives, and the loss is 0"):
        train(recipe)
    train(recipe, mlm_weight=0.1)  # the masked words are learnt


def test_the_error_of_a_long_score_is_short(tmp_path):
    (tmp_path / "pairs.csv").write_text(f"sentence1,sentence2,score\na,b,{'x' * 3000}\n", encoding="utf-8")
    with pytest.raises(UserError, match="is not a number") as error:
        load_pairs_file(str(tmp_path / "pairs.csv"))
    assert len(str(error.value)) < 500


def test_a_column_of_pairs_that_is_there_twice_is_refused(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("sentence1,sentence2,sentence2,score,score\na,b,b,1,2\nc,d,d,2,1\n", encoding="utf-8")
    with pytest.raises(UserError, match="pairs.csv: its header has the column sentence2 twice; rename one of them"):
        load_pairs_file(str(file))


@DRAWN
@given(
    content=st.binary() | st.text().map(lambda text: f"sentence1,sentence2,score\n{text}".encode("utf-8", "replace"))
)
def test_any_bytes_as_pairs_are_read_or_refused_in_one_line(tmp_path, content):
    file = tmp_path / "pairs.csv"
    file.write_bytes(content)
    try:
        task = load_pairs_file(str(file))
    except UserError as error:
        assert is_one_line(error)
    else:
        assert len(task.pairs) == len(task.scores) > 0


@DRAWN
@given(content=st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_as_a_recipe_are_read_or_refused_in_one_line(tmp_path, content):
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    try:
        load_recipe(str(file))
    except UserError as error:
        assert is_one_line(error)


KEYS = sorted(make_recipe({"base_model": "x"}).to_dict())


@settings(DRAWN, max_examples=300)
@given(key=st.sampled_from(KEYS) | st.text(), value=ANYTHING | st.sampled_from([-1, 0, 10**30, 1e-300, "nan", "inf"]))
def test_any_value_of_a_key_is_kept_or_refused_in_one_line(key, value):
    try:
        recipe = make_recipe({"base_model": "x", key: value})
    except UserError as error:
        assert is_one_line(error) and (key in str(error) or quoted(key) in str(error))
    else:
        assert make_recipe(yaml.safe_load(yaml.safe_dump(recipe.to_dict()))) == recipe


@pytest.mark.parametrize("label", ["[1]", "true", '"maybe"'])
def test_a_label_of_another_kind_is_named_with_its_row(tmp_path, label):
    file = tmp_path / "pairs.jsonl"
    file.write_text(f'{{"a": "A cat sits.", "b": "A dog runs.", "label": {label}}}\n', encoding="utf-8")
    recipe = make_recipe({"nli_file": str(file), "nli_columns": ["a", "b", "label"], "nli_classes": 3, "nli_steps": 1})
    with pytest.raises(UserError, match="row 1: label .* must be one of contradiction, entailment, neutral"):
        load_labelled(recipe, 3)
