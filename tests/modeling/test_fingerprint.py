"""A fingerprint allows the rounding of a precision and nothing more."""

import pytest
import torch
from transformers import LlamaConfig

from csezoo.modeling import SimCSEConfig, SimCSEModel
from csezoo.modeling.serving.fingerprint_csezoo import embed_token_ids, tokenize_sentences, verify_fingerprint
from csezoo.training.loading.templates import serving_tokenizer, template_token_ids
from tests.conftest import SENTENCES, tiny_config, tiny_tokenizer

TINY_LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
ALLOWED = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.2}


@pytest.fixture
def tokenizer():
    tokenizer = tiny_tokenizer("bert")
    return serving_tokenizer(tokenizer, template_token_ids(tokenizer), max_length=64)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return SimCSEModel(SimCSEConfig(backbone_config=tiny_config("bert"))).eval()


def fingerprint_of(model, tokenizer):
    sentences = [*SENTENCES[:2], "the cat " * 10]
    ids = tokenize_sentences(tokenizer, sentences)
    return {"sentences": sentences, "token_ids": ids, "embeddings": embed_token_ids(model, ids).tolist()}


@pytest.mark.parametrize("dtype", ALLOWED)
def test_a_vector_may_differ_by_the_rounding_of_its_precision(model, tokenizer, dtype):
    model = model.to(dtype)
    fingerprint = fingerprint_of(model, tokenizer)
    vector = fingerprint["embeddings"][1]
    allowed = ALLOWED[dtype] * torch.tensor(vector).square().mean().sqrt().item()
    largest = max(range(len(vector)), key=lambda i: abs(vector[i]))
    vector[largest] += 0.8 * allowed
    verify_fingerprint(model, tokenizer, fingerprint)
    vector[largest] += 0.5 * allowed
    with pytest.raises(ValueError, match=r"^1 of 3 vectors differ \(.* is allowed\): by .* for '") as refused:
        verify_fingerprint(model, tokenizer, fingerprint)
    assert repr(SENTENCES[1])[:40] in str(refused.value)


def test_a_decoder_without_a_padding_token_has_a_fingerprint(tokenizer):
    backbone = LlamaConfig(**TINY_LLAMA, vocab_size=len(tokenizer), pad_token_id=None)
    model = SimCSEModel(SimCSEConfig(backbone_config=backbone, pooling="last")).eval()
    verify_fingerprint(model, tokenizer, fingerprint_of(model, tokenizer))


def test_vectors_of_another_size_are_named_with_both_sizes(model, tokenizer):
    fingerprint = fingerprint_of(model, tokenizer)
    fingerprint["embeddings"] = [vector[:8] for vector in fingerprint["embeddings"]]
    with pytest.raises(ValueError, match="^the vectors have 32 dimensions instead of 8$"):
        verify_fingerprint(model, tokenizer, fingerprint)
