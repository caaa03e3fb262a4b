"""The transfer tasks: reading and order of the examples, damaged data, results with their receipts."""

import numpy as np
import pytest

from csezoo.training.errors import UserError
from csezoo.training.evaluation.suites import evaluate_tasks
from csezoo.training.evaluation.tasks.probing import PROTOCOLS, dev_then_test, folds_then_test, stratified_folds
from csezoo.training.evaluation.tasks.transfer import (
    RELEASED_EXAMPLES,
    TransferTask,
    examples_receipt,
    load_transfer_task,
    load_trec_lengths,
)
from tests.training.senteval_files import write


def letters(texts):
    """A toy encoder that counts a few letters."""
    return np.array([[text.count(letter) for letter in "aeiou "] for text in texts], np.float32)


def test_examples_are_sorted_by_length_and_label(cr):
    examples = load_transfer_task("CR", str(cr)).parts["all"]
    keys = [(len(texts[0].split()), label) for texts, label in examples]
    assert keys == sorted(keys) and len(keys) == 3775
    assert examples[0] == (("oo b \xe9",), 0), "tokens joined by single spaces, latin-1"


def test_an_empty_line_is_sorted_first_and_becomes_a_full_stop(cr):
    file = cr / "CR" / "custrev.pos"
    _, _, *others = file.read_text(encoding="latin-1").split("\n")
    file.write_text("\n".join(["*", " ", *others]), encoding="latin-1")
    examples = load_transfer_task("CR", str(cr)).parts["all"]
    assert examples[:2] == [((".",), 1), (("*",), 1)]


def test_the_result_has_test_accuracy_dev_accuracy_and_a_receipt(cr):
    task = load_transfer_task("CR", str(cr), "fast")
    (result,) = evaluate_tasks(letters, [task], receipt={"pooling": "cls"})
    assert (result["task"], result["metric"], result["protocol"]) == ("CR", "accuracy", "SentEval fast")
    assert result["value"] > 95 and result["dev"] > 95
    assert result["rows"] == {"all": 3775} and len(result["sha256"]) == 64
    assert result["dataset"] == "SentEval CR" and result["pooling"] == "cls"
    assert evaluate_tasks(letters, [task], receipt={"pooling": "cls"}) == [result], "the result is reproducible"


def test_the_six_kinds_of_questions_are_six_classes(tmp_path):
    kinds = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]
    for file, rows in (("train_5500.label", 5452), ("TREC_10.label", 500)):
        write(tmp_path / "TREC" / file, [f"{kinds[n % 6]}:kind What is {kinds[n % 6]} ?" for n in range(rows)])
    parts = load_transfer_task("TREC", str(tmp_path)).parts
    for examples in parts.values():
        assert set(examples) == {((f"What is {kind} ?",), label) for label, kind in enumerate(kinds)}


def test_a_paraphrase_has_the_two_sentences_and_the_label_of_its_line(tmp_path):
    for part, rows in RELEASED_EXAMPLES["MRPC"].items():
        lines = [f"{n % 2}\t11\t22\tfirst {n % 2}\tsecond {n % 2}" for n in range(rows)]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        write(tmp_path / "MRPC" / f"msr_paraphrase_{part}.txt", [header, *lines])
    parts = load_transfer_task("MRPC", str(tmp_path)).parts
    for examples in parts.values():
        assert set(examples) == {(("first 0", "second 0"), 0), (("first 1", "second 1"), 1)}


@pytest.mark.parametrize(
    "changed", [{"train": [(("a",), 1)]}, {"train": [(("b",), 0)]}, {"test": [(("a",), 0)]}], ids=str
)
def test_the_checksum_of_examples_depends_on_text_label_and_part(changed):
    receipt = examples_receipt({"train": [(("a",), 0)]}, "here", None)
    assert examples_receipt({"train": [(("a",), 0)]}, "elsewhere", None)["sha256"] == receipt["sha256"]
    assert examples_receipt(changed, "here", None)["sha256"] != receipt["sha256"]


def small(parts, pair=False):
    """A task with a few random sentences."""
    generator = np.random.default_rng(0)

    def text():
        return " ".join("".join(generator.choice(list("aeiou"), 3)) for _ in range(generator.integers(2, 6)))

    def example():
        texts = (text(), text()) if pair else (text(),)
        return texts, int(texts[0].count("a") > 1)

    return TransferTask(
        "toy", {part: [example() for _ in range(rows)] for part, rows in parts.items()}, "here", "fast"
    )


def test_the_parts_of_a_task_select_the_protocol():
    protocol = PROTOCOLS["fast"]
    for parts in ({"all": 60}, {"train": 60, "test": 20}, {"train": 60, "dev": 20, "test": 20}):
        task = small(parts)
        examples = [example for part in task.parts.values() for example in part]
        x, y = letters([texts[0] for texts, _ in examples]), np.array([label for _, label in examples])
        expected = {
            1: lambda x=x, y=y: folds_then_test(x, y, stratified_folds(y, protocol.folds), protocol),
            2: lambda x=x, y=y: folds_then_test(x, y, [(np.arange(60), np.arange(60, 80))], protocol),
            3: lambda x=x, y=y: dev_then_test(x, y, *np.split(np.arange(100), [60, 80]), protocol),
        }[len(parts)]()
        (result,) = task.results(letters)
        assert (result["dev"], result["value"]) == pytest.approx(expected, abs=1e-9)


def test_the_features_of_a_pair_are_difference_and_product():
    task = small({"train": 60, "test": 20}, pair=True)
    examples = [example for part in task.parts.values() for example in part]
    a, b = (letters([texts[side] for texts, _ in examples]) for side in (0, 1))
    labels = np.array([label for _, label in examples])
    features = np.concatenate([abs(a - b), a * b], axis=1)
    expected = folds_then_test(features, labels, [(np.arange(60), np.arange(60, 80))], PROTOCOLS["fast"])
    (result,) = task.results(letters)
    assert (result["dev"], result["value"]) == pytest.approx(expected, abs=1e-9)


def test_a_damaged_file_is_refused_by_its_row_count(cr):
    file = cr / "CR" / "custrev.neg"
    file.write_text("\n".join(file.read_text(encoding="latin-1").splitlines()[:20]) + "\n", encoding="latin-1")
    with pytest.raises(UserError, match="CR: expected 3775 examples .* got 2427; download the data again"):
        load_transfer_task("CR", str(cr))


def test_short_questions_are_left_out_of_both_parts(tmp_path):
    for name, rows in (("train_5500.label", 5452), ("TREC_10.label", 500)):
        lines = [f"HUM:ind {'who ' * (1 + row % 9)}?" for row in range(rows)]  # of 2 to 10 words with the mark
        write(tmp_path / "TREC" / name, lines)
    every, six, eight = load_trec_lengths(str(tmp_path))
    assert [task.name for task in (every, six, eight)] == ["TREC", "TREC, from 6 words", "TREC, from 8 words"]
    for task, least in ((six, 6), (eight, 8)):
        for part, examples in task.parts.items():
            assert examples == [each for each in every.parts[part] if len(each[0][0].split()) >= least]
            assert min(len(texts[0].split()) for texts, _ in examples) == least


def test_a_bad_line_is_reported_with_file_and_number(tmp_path):
    write(tmp_path / "TREC" / "train_5500.label", ["HUM:ind Who ?", "WHO:ind Who ?"])
    with pytest.raises(UserError, match=r"train_5500.label, line 2: 'WHO' must be one of ABBR"):
        load_transfer_task("TREC", str(tmp_path))
    write(tmp_path / "SST" / "binary" / "sentiment-train", ["fine\t1", "bad"])
    with pytest.raises(UserError, match="sentiment-train, line 2: expected a sentence with the label 0 or 1"):
        load_transfer_task("SST2", str(tmp_path))
