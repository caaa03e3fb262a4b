"""An int8 file has the same bytes again and close vectors; what it saves and costs is measured, and on the card."""

import hashlib
import re
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from huggingface_hub import ModelCard
from onnxruntime import InferenceSession, SessionOptions
from transformers import AutoTokenizer

from csezoo.modeling.contrastive.published import load_published
from csezoo.training.errors import UserError
from csezoo.training.publishing.audit import audit
from csezoo.training.publishing.export import export
from csezoo.training.publishing.quantized import (
    MEASURED_TEXTS,
    OPENVINO_FILE,
    cost,
    onnx_encoder,
    openvino_encoder,
    processor_time,
    write_int8,
    write_openvino_int8,
)
from tests.conftest import SENTENCES
from tests.repositories import tiny_repository
from tests.training.senteval_files import write_senteval

OPENVINO = find_spec("openvino") is not None and find_spec("nncf") is not None


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A tiny model's export with all files in int8, and what was reported."""
    directory, lines = tmp_path_factory.mktemp("quantized"), []
    prompt = {"named_prompts": {"query": "the old "}, "default_prompt_name": "query"}
    source = tiny_repository(directory / "source", kind="roberta", pooling="mean", projection="none", **prompt)
    write_senteval(directory / "data")
    choices = {
        "onnx": True,
        "quantize": "int8",
        "openvino": OPENVINO,
        "data": str(directory / "data"),
        "report": lines.append,
    }
    export(str(source), str(directory / "out"), **choices)
    return directory / "out", lines


@pytest.mark.parametrize("layers", [{"whitening_size": 8}, {"flow_width": 4}], ids=["whitening", "flow"])
def test_layers_after_the_pooling_are_quantised_too(tmp_path, layers):
    export(str(tiny_repository(tmp_path / "source", **layers)), str(tmp_path / "out"), onnx=True)
    small = write_int8(tmp_path / "out" / "onnx" / "model.onnx")
    vectors = onnx_encoder(small, AutoTokenizer.from_pretrained(tmp_path / "out"))(SENTENCES[:20])
    assert lowest_cosine(vectors, load_published(tmp_path / "out").encode(SENTENCES[:20])) > 0.95


@pytest.mark.slow
def test_the_card_says_what_was_reported(exported):
    directory, lines = exported
    card = ModelCard.load(directory / "README.md").text
    assert all(line in card for line in lines)
    full, small = ((directory / "onnx" / name).stat().st_size for name in ("model.onnx", "model_int8.onnx"))
    assert f"has {small / full:.0%} of the bytes" in lines[0]
    assert "points" in lines[1] and "STS12" in lines[2] and "int8" in lines[2]
    cosine = float(re.search(r"before and after is ([\d.]+)", lines[0])[1])
    assert cosine > 0.99, "the default prompt is in front of the texts of both"
    encode = onnx_encoder(directory / "onnx" / "model_int8.onnx", AutoTokenizer.from_pretrained(directory))
    texts = [load_published(directory).prompt_text() + text for text in MEASURED_TEXTS]
    together, alone = encode(texts), np.concatenate([encode([text]) for text in texts])
    assert not np.array_equal(together, alone), "activations are quantised over the batch"
    assert f"alone and in a batch of 32 is {lowest_cosine(together, alone):.4f}" in lines[0]


def lowest_cosine(first, second) -> float:
    return float(((first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)).min())


@pytest.mark.slow
def test_the_same_file_gives_the_same_bytes_and_close_vectors(exported):
    directory, _ = exported
    full, small = (directory / "onnx" / name for name in ("model.onnx", "model_int8.onnx"))
    before = hashlib.sha256(small.read_bytes()).hexdigest()
    assert hashlib.sha256(write_int8(full).read_bytes()).hexdigest() == before
    tokenizer = AutoTokenizer.from_pretrained(directory)
    first, second = (onnx_encoder(file, tokenizer)(SENTENCES[:40]) for file in (full, small))
    assert 0.98 < lowest_cosine(first, second) < 1 - 1e-7


@pytest.mark.slow
def test_onnx_runtime_does_not_use_its_slow_layer_norm(exported, tmp_path):
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    InferenceSession(exported[0] / "onnx" / "model_int8.onnx", options, providers=["CPUExecutionProvider"])
    kinds = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert "LayerNormalization" in kinds and "SkipLayerNormalization" not in kinds


@pytest.mark.slow
@pytest.mark.skipif(not OPENVINO, reason="OPENVINO INT8 NOT TESTED: openvino or nncf is not installed")
def test_openvino_gets_the_same_bytes_again_and_close_vectors(exported):
    directory, lines = exported
    assert f"`openvino/{OPENVINO_FILE}` has" in lines[3] and audit(directory) == []
    tokenizer = AutoTokenizer.from_pretrained(directory)
    full, small = directory / "onnx" / "model.onnx", directory / "openvino" / OPENVINO_FILE
    first, second = onnx_encoder(full, tokenizer)(SENTENCES[:40]), openvino_encoder(small, tokenizer)(SENTENCES[:40])
    assert 0.98 < lowest_cosine(first, second) < 1 - 1e-7
    before = [path.read_bytes() for path in sorted(small.parent.iterdir())]
    write_openvino_int8(full, tokenizer)
    assert [path.read_bytes() for path in sorted(small.parent.iterdir())] == before and len(before) == 2


def test_processor_time_is_that_of_the_first_as_a_share_of_the_second():
    def work(times: int):
        matrix = np.random.default_rng(0).random((200, 200))

        def encode(texts):
            for _ in range(times):
                matrix @ matrix
            return matrix

        return encode

    assert processor_time(work(200), work(20)) > 2


def test_points_lost_are_the_difference_of_the_averages():
    tasks = [{"task": "STS12", "value": 70.0}, {"task": "STS13", "value": 80.0}]
    after = [{"task": "STS12", "value": 69.5}, {"task": "STS13", "value": 79.9}]
    assert "loses 0.30 points" in cost(tasks, after)[0]
    assert "gains 0.30 points" in cost(after, tasks)[0]


def test_options_that_need_another_are_refused():
    with pytest.raises(UserError, match="give --onnx too"):
        export("run", "out", truncate_dim=5, quantize="int8")
    with pytest.raises(UserError, match="openvino.*give --quantize int8"):
        export("run", "out", onnx=True, openvino=True)
    with pytest.raises(UserError, match="give --quantize int8 too"):
        export("run", "out", onnx=True, data="hub")
