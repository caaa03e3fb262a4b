"""The pictures of a run and of an encoder are drawn, and the layer scores are correct."""

import json
import resource
import signal
from contextlib import suppress

import numpy as np
import pytest

from csezoo.training.cli.parser import main
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.suites import evaluate_tasks
from csezoo.training.evaluation.tasks.sts import PairTask
from csezoo.training.pictures.curves import draw_training_curves
from csezoo.training.pictures.figures import new_figure, save_picture
from csezoo.training.pictures.portraits import layer_scores
from csezoo.training.pictures.vectors import draw_pairs, draw_similarities
from tests.conftest import SENTENCES
from tests.interpreters import CONTEXT


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def _draw_on_a_full_disk(path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails, as on a full disk
    with suppress(OSError):
        save_picture(new_figure(2, 2), path)


def test_a_picture_on_a_full_disk_is_absent_or_the_one_before(tmp_path):
    save_picture(new_figure(1, 1), tmp_path / "old.png")
    before = (tmp_path / "old.png").read_bytes()
    for name in ("old.png", "new.png"):
        process = CONTEXT.Process(target=_draw_on_a_full_disk, args=(tmp_path / name,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]
    assert (tmp_path / "old.png").read_bytes() == before


def test_curves_are_drawn_beside_the_metrics(tmp_path):
    lines = [{"step": step, "loss": 1 / (step + 1)} for step in range(1, 9)]
    lines += [{"step": step, "dev": 70 + step % 5} for step in range(0, 9, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    draw_training_curves(tmp_path / "metrics.jsonl", 4)
    assert is_png(tmp_path / "training_curves.png")


def test_a_run_without_updates_or_dev_has_no_curves(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("", encoding="utf-8")
    draw_training_curves(tmp_path / "metrics.jsonl", None)
    assert not (tmp_path / "training_curves.png").exists()


def test_similarities_and_pairs_are_drawn(tmp_path):
    generator = np.random.default_rng(0)
    scores = generator.uniform(0, 5, 200)
    draw_similarities(scores / 5 + generator.normal(0, 0.1, 200), scores, tmp_path / "similarities.png")
    draw_pairs(generator.normal(size=(8, 2, 5)), np.arange(8) < 4, tmp_path / "pairs.png")
    assert is_png(tmp_path / "similarities.png") and is_png(tmp_path / "pairs.png")


@pytest.mark.parametrize("scores", [[0.0, 0.25, 0.5, 1.0], [3.0, 3.0, 3.0, 3.0]])
def test_a_few_pairs_on_any_scale_are_drawn(tmp_path, scores):
    draw_similarities(np.array([0.1, 0.2, 0.9, 0.7]), np.array(scores), tmp_path / "similarities.png")
    assert is_png(tmp_path / "similarities.png")


@pytest.mark.parametrize(
    ("of", "options"), [("similarities", ["--pooling", "mean"]), ("pairs", ["--pooling", "mean"]), ("layers", [])]
)
def test_the_command_draws_each_picture(real_data, bases, tmp_path, of, options):
    options = [*options, "--data", str(real_data / "data" / "senteval"), "--out", str(tmp_path / "p.png")]
    main(["portrait", str(bases["bert"]), "--of", of, *options])
    assert is_png(tmp_path / "p.png")


def test_layer_scores_match_the_pooled_hidden_states(bases):
    pairs = list(zip(SENTENCES[:40], SENTENCES[20:60], strict=True))
    task = PairTask("toy", pairs, [float(i % 6) for i in range(40)], "here")
    scores = layer_scores(str(bases["bert"]), task, batch_size=16)
    assert scores.shape == (4, 3)
    assert scores[0, 0] == 0, "[CLS] of the embedding layer is the same for every sentence"
    for column, pooling in ((0, "cls"), (1, "mean"), (2, "max")):
        encode, _ = load_encoder(str(bases["bert"]), pooling=pooling)
        assert scores[-1, column] == pytest.approx(evaluate_tasks(encode, [task])[0]["value"], abs=1e-3)
