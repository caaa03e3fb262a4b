"""The cost of encoding is measured on separate calls, and its numbers are consistent."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from transformers import AutoModel

from csezoo.modeling.contrastive.backbones import longest_input
from csezoo.training.cli.parser import main
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.sentence_vectors import SentenceVectors
from csezoo.training.evaluation.tasks.encoding_cost import CostTask
from csezoo.training.evaluation.tasks.sts import PairTask
from tests.conftest import SENTENCES, tiny_config, tiny_tokenizer

PAIRS = PairTask("toy", [(SENTENCES[0], SENTENCES[1]), (SENTENCES[1], SENTENCES[2])], [0.0, 1.0], "example")


def figures(results) -> dict[str, float]:
    return {result["metric"]: result["value"] for result in results}


def test_every_call_encodes_each_sentence_once_and_the_first_call_is_not_timed(base):
    encode, _ = load_encoder(str(base), pooling="mean")
    calls = []
    encode.encode, inner = lambda texts: calls.append(texts) or inner(texts), encode.encode
    cost = figures(CostTask(PAIRS).results(SentenceVectors(encode)))
    assert calls == [sorted(SENTENCES[:3])] * 4
    assert cost["sentences per second"] == pytest.approx(3 / cost["seconds"])
    # Seven words, a token each, and two special tokens per sentence.
    assert encode.count_tokens(SENTENCES[:3]) >= 27
    assert cost["tokens per second"] == pytest.approx(encode.count_tokens(SENTENCES[:3]) / cost["seconds"])
    assert 0.05 < cost["peak RSS, GiB"] < 100


def test_a_plain_function_has_no_tokens_per_second():
    assert "tokens per second" not in figures(CostTask(PAIRS).results(SentenceVectors(lambda texts: texts)))


def test_the_receipt_names_repeats_and_threads():
    assert {"repeats": 3, "threads": torch.get_num_threads()}.items() <= CostTask(PAIRS).receipt().items()


def test_tokens_are_counted_after_truncation(base, kind):
    encode, _ = load_encoder(str(base), pooling="mean")
    assert encode.count_tokens(["the cat " * 1000]) == longest_input(AutoModel.from_config(tiny_config(kind)))


def test_tokens_of_static_models_of_sentence_transformers_are_counted(tmp_path):
    """Their tokenizers are not those of transformers, and they read no special tokens."""
    words = WhitespaceTokenizer(["small", "cat"])
    modules = {
        "static": [StaticEmbedding(tiny_tokenizer("bert"), embedding_dim=4)],
        "words": [WordEmbeddings(words, np.ones((2, 4), np.float32)), Pooling(4, "mean")],
    }
    for name, parts in modules.items():
        SentenceTransformer(modules=parts).save(str(tmp_path / name))
        encode, _ = load_encoder(str(tmp_path / name))
        assert encode.count_tokens(["small cat", "cat"]) == 3


def test_cost_is_a_suite_of_csezoo_evaluate(base, senteval, capsys):
    main(["evaluate", str(base), "--pooling", "mean", "--suite", "cost", "--data", str(senteval)])
    assert "STSBenchmark cost  tokens per second" in capsys.readouterr().out
