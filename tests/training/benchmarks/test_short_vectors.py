"""Short vectors are scored as their precision compares them, and the picture is drawn from the report."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from csezoo.training.benchmarks.short_vectors import shortened
from csezoo.training.cli.parser import main
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.sentence_vectors import SentenceVectors
from csezoo.training.evaluation.tasks.sts import load_task
from csezoo.training.pictures.benchmarks import draw_short_vectors
from tests.training.evaluation.tasks.test_sts import write_senteval


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


@pytest.mark.filterwarnings("ignore:An input array is nearly constant")
@pytest.mark.slow
def test_the_command_scores_every_length_and_precision_and_averages_models(bases, tmp_path, capsys):
    data = write_senteval(tmp_path / "senteval")
    pairs = data / "downstream" / "STS" / "STSBenchmark" / "sts-test.csv"
    pairs.write_text(pairs.read_text(encoding="utf-8").replace("\t5.500\t", "\t5.000\t"), encoding="utf-8")
    models = [f"one={bases['bert']}", f"two={bases['bert']}", f"two={bases['roberta']}"]
    out = ["--out", str(tmp_path / "short.json"), "--picture", str(tmp_path / "short.png")]
    command = ["benchmark", "short", "--models", *models, "--pooling", "mean", "--data", str(data), "--dims", "8"]
    main([*command, *out])
    points = json.loads((tmp_path / "short.json").read_text(encoding="utf-8"))["points"]
    assert [(p["label"], p["dimensions"], p["precision"], p["bytes"]) for p in points] == [
        (label, size, precision, size * bits // 8)
        for label in ("one", "two")
        for size in (32, 8)
        for precision, bits in (("float32", 32), ("int8", 8), ("binary", 1))
    ]
    assert [len(p["spearman"]) for p in points] == [1] * 6 + [2] * 6
    assert [p["spearman"][0] for p in points[:6]] == [p["spearman"][0] for p in points[6:]]
    assert "one, 8 dimensions, binary: 1 bytes, STS " in capsys.readouterr().out
    assert (tmp_path / "short.png").is_file()
    encode = load_encoder(str(bases["bert"]), pooling="mean")[0]
    expected = []
    for name in ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R"):
        task = load_task(name, str(data))
        left, right = (encode([pair[side] for pair in task.pairs])[:, :8].astype(np.float64) for side in (0, 1))
        cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
        expected.append(100 * spearmanr(cosines, task.scores).statistic)
    assert points[3]["spearman"][0] == pytest.approx(np.mean(expected), abs=0.05)
    with pytest.raises(SystemExit):
        main([*command[:-1], "32"])
    assert "dims: 32 must be at least 1 and below 32" in capsys.readouterr().err


def test_a_model_without_a_label_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["benchmark", "short", "--models", "runs/a/best", "--data", "none"])
    assert "'runs/a/best' is not LABEL=MODEL; give a label, such as plain=runs/a/best" in capsys.readouterr().err
