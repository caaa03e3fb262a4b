"""Short vectors are scored as their precision compares them, and the picture is drawn from the report."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from csezoo.training.benchmarks.race import format_benchmark
from csezoo.training.benchmarks.short_vectors import score_short_vectors, shortened
from csezoo.training.evaluation.sentence_vectors import SentenceVectors
from csezoo.training.evaluation.tasks.retrieval import RetrievalTask
from csezoo.training.evaluation.tasks.sts import PairTask
from csezoo.training.pictures.benchmarks import draw_short_vectors


def vectors_of(count=40, size=20) -> tuple[SentenceVectors, np.ndarray]:
    matrix = np.random.default_rng(0).standard_normal((count, size)).astype(np.float32)
    vectors = SentenceVectors(lambda texts: matrix)
    vectors.add({f"{number:02}" for number in range(count)})
    return vectors, matrix


def test_bits_are_compared_by_how_many_are_equal():
    vectors, matrix = vectors_of()
    names = list(vectors.rows)
    short = shortened(vectors, 12, "binary")(names).astype(np.float64)
    cosines = short @ short.T / np.outer(*[np.linalg.norm(short, axis=1)] * 2)
    bits = matrix[:, :12] > 0
    different = (bits[:, None] != bits[None]).sum(2)
    np.testing.assert_allclose(cosines, 1 - 2 * different / 12, atol=1e-12)


def test_float32_is_the_unit_vector_of_the_first_dimensions_and_int8_its_number_of_256():
    vectors, matrix = vectors_of()
    names = list(vectors.rows)
    units = matrix[:, :12] / np.linalg.norm(matrix[:, :12].astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(shortened(vectors, 12, "float32")(names), units, atol=1e-6)
    least, most = units.min(0), units.max(0)
    numbers = np.clip(np.floor((units - least) / (most - least) * 255), 0, 255) - 128
    assert (np.abs(shortened(vectors, 12, "int8")(names) - numbers) > 0).mean() < 0.01


def point(label, precision, size, scores):
    bits = {"float32": 32, "int8": 8, "binary": 1}[precision]
    values = {"spearman": scores, "recall@10": scores}
    return {"label": label, "dimensions": size, "precision": precision, "bytes": size * bits // 8, **values}


def test_the_picture_is_drawn(tmp_path):
    points = [
        point(label, precision, size, [60 + size / 64, 61 + size / 64])
        for label in ("plain", "matryoshka")
        for size in (384, 64)
        for precision in ("float32", "int8", "binary")
    ]
    draw_short_vectors(points, tmp_path / "short.png")
    draw_short_vectors([{**each, "spearman": [60.0]} for each in points], tmp_path / "one.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("short.png", "one.png"))


def tasks() -> list:
    """An STS task and a retrieval task, over the same sentences."""
    draw = np.random.default_rng(1)
    pairs = [(f"a{number}", f"b{number}") for number in range(60)]
    scores = [float(score) for score in draw.integers(0, 6, 60)]
    return [PairTask(name, pairs, scores, "made here") for name in ("one", "two")] + [
        RetrievalTask(PairTask("three", pairs, scores, "made here"))
    ]


def encode(texts):
    """Vectors whose second half is noise. The two sentences of a pair share the first half."""
    rows = []
    for text in texts:
        shared, own = (np.random.default_rng([7, *seed]) for seed in ([int(text[1:])], list(text.encode())))
        first = shared.standard_normal(16) + 0.3 * own.standard_normal(16)
        rows.append(np.concatenate([first, own.standard_normal(16)]))
    return np.array(rows, np.float32)


def test_every_length_and_precision_is_scored_against_the_metrics_of_the_suites():
    points = score_short_vectors(encode, tasks(), [4, 16])
    assert [(each["dimensions"], each["precision"], each["bytes"]) for each in points] == [
        (size, precision, size * bits // 8 or 1)
        for size in (32, 16, 4)
        for precision, bits in (("float32", 32), ("int8", 8), ("binary", 1))
    ]
    task = tasks()[0]
    left, right = (encode([pair[side] for pair in task.pairs])[:, :16].astype(np.float64) for side in (0, 1))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    expected = 100 * spearmanr(cosines, task.scores).statistic
    assert points[3]["spearman"] == pytest.approx([expected], abs=1e-6)
    assert points[3]["recall@10"] == [100.0]
    assert points == score_short_vectors(encode, tasks(), [64, 32, 16, 4, 4]), (
        "a model is cut to what is shorter than it"
    )


def test_the_report_compares_with_the_complete_vectors():
    points = [point("plain", "float32", 384, [70.0, 72.0]), point("plain", "binary", 64, [69.0, 70.0])]
    assert format_benchmark({"benchmark": "short", "points": points}).splitlines() == [
        "plain, 384 dimensions, float32: 1,536 bytes, STS 71.00 ± 1.41 (100.0% of complete), recall@10 71.00",
        "plain, 64 dimensions, binary: 8 bytes, STS 69.50 ± 0.71 (97.9% of complete), recall@10 69.50",
    ]
