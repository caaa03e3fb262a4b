"""The benchmark of streams reads the batches of a run, and resumes where they end."""

import json

import pytest

from csezoo.training.cli.parser import main


def test_a_stream_is_read_and_resumed(tiny, train_file, tmp_path, capsys):
    out = tmp_path / "stream.json"
    keys = tiny(shuffle_buffer=32)
    given = ("base_model", "train_file", "batch_size", "shuffle_buffer")
    arguments = [f"--{key}={keys[key]}" for key in given]
    main(["benchmark", "stream", "simcse-bert-base-uncased", "--batches", "5", "--out", str(out), *arguments])
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["rows"] == 5 * 16
    assert report["place"]["batch"] == 4 and report["place"]["block"] == 2, "a block has two batches"
    assert report["rows per second"] == pytest.approx(80 / report["seconds to read"])
    assert f"{report['rows per second']:,.0f} rows per second" in capsys.readouterr().out
