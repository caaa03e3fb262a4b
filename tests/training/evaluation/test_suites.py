"""Scores match an independent Spearman in float64; an encoder that cannot be scored gets a clear error."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.report import average
from csezoo.training.evaluation.suites import LOADERS, evaluate, evaluate_tasks
from csezoo.training.evaluation.tasks.names import DEV_TASK, SUITES
from csezoo.training.evaluation.tasks.sts import PairTask, unit_vectors
from tests.conftest import write_pairs
from tests.training.senteval_files import write


def spearman(x, y) -> float:
    """scipy's correlation times 100."""
    return 100 * spearmanr(x, y).statistic


def cosine(first, second) -> float:
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    norms = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / norms) if norms else 0.0


def test_the_names_of_the_suites_are_those_that_can_be_loaded():
    assert tuple(LOADERS) == SUITES


class Letters:
    """A toy encoder that counts letters. Many pairs tie, and "…" is a zero vector. It records its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.calls.append(texts)
        return np.array([[text.count(letter) for letter in "abcde"] for text in texts], np.float32)

    def cosines(self, task: PairTask) -> list[float]:
        return [cosine(*self(list(pair))) for pair in task.pairs]


@pytest.fixture
def tasks() -> list[PairTask]:
    """Two tasks that share sentences, with ties in the gold scores and in the similarities."""
    generator = np.random.default_rng(0)
    words = [*"abcde", "aa", "bbb", "aaabbbb", "bbbcccc", "…"]  # cosines of 0, 0.48, 0.6, 0.8 and 1, exact in floats
    tasks = []
    for name in ("one", "two"):
        pairs = [tuple(generator.choice(words, 2).tolist()) for _ in range(80)]
        tasks.append(PairTask(name, pairs, generator.integers(0, 6, 80).astype(float).tolist(), "here"))
    return tasks


def test_the_score_is_spearman_of_the_cosines_times_100(tasks):
    encode = Letters()
    results = evaluate_tasks(encode, tasks)
    for task, result in zip(tasks, results, strict=True):
        similarities = encode.cosines(task)
        assert len(set(similarities)) < len(similarities), "there are ties"
        assert result["value"] == pytest.approx(spearman(similarities, task.scores), abs=1e-9)
        assert (result["task"], result["metric"]) == (task.name, "spearman")


def test_every_distinct_sentence_is_encoded_once_for_all_tasks(tasks):
    encode = Letters()
    evaluate_tasks(encode, tasks)
    (texts,) = encode.calls
    assert sorted(texts) == sorted({sentence for task in tasks for pair in task.pairs for sentence in pair})


def test_the_cosine_of_a_zero_vector_is_0():
    vectors = unit_vectors(np.array([[3, 4], [0, 0]], np.float32))
    assert vectors.tolist() == [[0.6, 0.8], [0.0, 0.0]] and vectors.dtype == np.float64
    task = PairTask("zero", [("a", "a"), ("a", "…"), ("ab", "b")], [5.0, 0.0, 3.0], "here")
    assert evaluate_tasks(Letters(), [task])[0]["value"] == 100.0


def with_nan(texts):
    return np.where(np.arange(len(texts))[:, None] == 3, np.nan, Letters()(texts))


@pytest.mark.filterwarnings("ignore:An input array is constant")
@pytest.mark.parametrize(
    ("encode", "parts"),
    [
        (with_nan, ["not finite"]),
        (lambda texts: Letters()(texts) / 0.0, ["not finite"]),
        (lambda texts: Letters()(texts)[1:], ["shape (9, 5) for 10 sentences"]),
        (lambda texts: Letters()(texts)[:, 0], ["shape (10,)"]),
        (lambda texts: Letters()(texts)[None], ["shape (1, 10, 5)"]),
        (lambda texts: np.ones((len(texts), 4)), ["one: all similarities are equal", "one vector for every sentence"]),
        (lambda texts: np.zeros((len(texts), 4)), ["one: all similarities are equal"]),
        (lambda texts: np.outer(np.linspace(0.1, 1.3, len(texts)), [1, 3, 7]), ["one: all similarities are equal"]),
    ],
    ids=["nan", "infinite", "a row short", "one number each", "another axis", "constant", "zero", "parallel"],
)
def test_an_encoder_that_cannot_be_scored_is_a_one_line_error(tasks, encode, parts):
    with np.errstate(all="ignore"), pytest.raises(UserError) as error:
        evaluate_tasks(encode, tasks)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_equal_cosines_tie_although_they_are_rounded_differently():
    """The three pairs of parallel vectors are as similar as each other, whatever their lengths."""
    lengths = dict(zip("abcdef", [0.1, 0.7, 1.1, 1.3, 3.0, 7.0], strict=True))

    def encode(texts):
        return np.array([[1, 3, 7] if text in lengths else [3, 1, 0] for text in texts]) * [
            [lengths.get(text, 1)] for text in texts
        ]

    task = PairTask("one", [("a", "b"), ("c", "d"), ("e", "f"), ("a", "x")], [3.0, 2.0, 1.0, 0.0], "here")
    assert len(set(task.similarities(lambda texts: encode(texts).astype(np.float32)))) == 2
    assert task.results(encode)[0]["value"] == pytest.approx(100 * np.sqrt(0.6))


def test_a_suite_is_read_from_a_directory_and_an_unknown_suite_is_refused(tmp_path):
    generator = np.random.default_rng(2)
    sentences = ["".join(generator.choice(list("abcde"), 9)) for _ in range(3000)]
    lines = [f"g\tf\ty\t{n}\t{n % 6}\t{sentences[2 * n]}\t{sentences[2 * n + 1]}" for n in range(1500)]
    write(tmp_path / "STS" / "STSBenchmark" / "sts-dev.csv", lines)
    (result,) = evaluate(Letters(), ["sts-dev"], str(tmp_path), receipt={"kind": "letters"})["results"]
    assert (result["task"], result["rows"], result["kind"]) == (DEV_TASK, 1500, "letters")
    with pytest.raises(UserError, match="'stss' must be one of sts, sts-dev"):
        evaluate(Letters(), ["sts-dev", "stss"], str(tmp_path))


def test_two_files_of_pairs_have_two_names(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_pairs(tmp_path / folder / "pairs.csv")
    both = [str(tmp_path / folder / "pairs.csv") for folder in ("a", "b")]
    with pytest.raises(UserError, match="pairs: two files have the name pairs, by which a score is found; rename one"):
        evaluate(Letters(), [], "none", pairs=both)


def test_the_average_of_pairs_has_every_file_whatever_its_name():
    results = [{"suite": "pairs", "task": "my-dev", "value": 50.0}, {"suite": "pairs", "task": "dev", "value": 80.0}]
    assert average(results) == 65.0
    assert average([{"task": "STSBenchmark-dev", "value": 50.0}, {"task": "STS12", "value": 80.0}]) == 80.0


def plain_cls(directory: str, texts: list[str]) -> np.ndarray:
    """The last layer's first token, by transformers alone, one text at a time."""
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state for text in texts]
    return torch.cat([state[:, 0] for state in states]).numpy()


@pytest.mark.slow
def test_a_real_encoder_gets_the_score_of_an_independent_implementation(real_data):
    directory, senteval = str(real_data / "base" / "minilm-mlm"), real_data / "data" / "senteval"
    encode, receipt = load_encoder(directory, pooling="cls")
    vectors = {}

    def recorded(texts):
        batch = encode(texts)
        vectors.update(zip(texts, batch, strict=True))
        return batch

    (result,) = evaluate(recorded, ["sts-dev"], str(senteval), receipt=receipt)["results"]
    file = senteval / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    pairs = [[" ".join(cell.split()) for cell in row[5:7]] for row in rows]
    cosines = [cosine(vectors[first], vectors[second]) for first, second in pairs]
    assert result["value"] == pytest.approx(spearman(cosines, [float(row[4]) for row in rows]), abs=0.01)
    assert result["value"] == pytest.approx(75.3, abs=0.2)
    assert (result["pooling"], result["kind"], result["rows"]) == ("cls", "transformers", 1500)
    sample = [text for pair in pairs[::25] for text in pair]
    expected = plain_cls(directory, sample)
    np.testing.assert_allclose(np.stack([vectors[text] for text in sample]), expected, atol=1e-4)


def test_fewer_rows_of_transfer_tasks_are_said_in_their_receipts(real_data):
    def encode(texts):
        return np.array([[len(text), text.count("a"), text.count(" ")] for text in texts], float)

    data = str(real_data / "data" / "senteval")
    results = evaluate(encode, ["sts-dev", "transfer-fast"], data, transfer_rows=1000)["results"]
    rows = {result["task"]: result["rows"] for result in results}
    assert rows[DEV_TASK] == 1500
    assert rows["MR"] == {"all": 1000} and rows["SST2"] == {"train": 1000, "dev": 872, "test": 1000}
    assert all(result["dataset"].endswith("at most 1000 rows of a part") for result in results[1:])
    assert not any(result["as_released"] for result in results[1:])
