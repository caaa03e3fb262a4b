"""The suite of edits: its mean cosine, and the sentences with their prefixes."""

import numpy as np
import pytest

from csezoo.training.evaluation.tasks.edits import EditTask, load_edits
from csezoo.training.evaluation.tasks.names import DEV_TASK, RELEASED_PAIRS
from tests.training.senteval_files import write


def letters(texts: list[str]) -> np.ndarray:
    return np.array([[text.count(letter) + 1 for letter in "aeiou"] for text in texts], dtype=np.float64)


def test_the_value_is_the_mean_cosine_of_the_pairs():
    a, b = ["a cat", "see me"], ["a dog", "oh"]
    (result,) = EditTask("toy", a, b, {}).results(letters)
    expected = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(letters(a), letters(b), strict=True)]
    assert result == {"task": "toy", "metric": "cosine", "value": pytest.approx(np.mean(expected), abs=1e-12)}


def test_a_zero_vector_has_cosine_0():
    (result,) = EditTask("toy", ["a cat"], ["a dog"], {}).results(lambda texts: np.zeros((len(texts), 3)))
    assert result["value"] == 0


def test_the_tasks_are_table_1_and_every_prefix(tmp_path):
    """Of a file of STS-B dev with two sentences."""
    lines = ["genre\tfile\tyear\t7\t2.500\ta b c d e f g h\tshort"] * RELEASED_PAIRS[DEV_TASK]
    write(tmp_path / "STS" / "STSBenchmark" / "sts-dev.csv", lines)
    tasks = {task.name: task for task in load_edits(str(tmp_path))}
    assert len(tasks) == 4 + 6 + 4
    assert tasks["rearrangement"].edited == ["natural language processing love I."]
    assert tasks["level-um"].edited == ["um a b c d e f g h", "short"]
    assert tasks["one-[MASK]"].edited == ["[MASK] a b c d e f g h", "[MASK] short"]
    assert tasks["one-reversal"].edited == ["reversal a b c d e f g h", "reversal short"]
