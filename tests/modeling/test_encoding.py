"""Embedding lists of texts: every vector is that of its text alone, in batches of a bounded number of tokens."""

import numpy as np
import pytest
import torch

from csezoo.modeling import SimCSEConfig, SimCSEModel
from csezoo.modeling.encoding import CPU_BATCH_TOKENS
from csezoo.training.loading.templates import serving_tokenizer, template_token_ids
from tests.conftest import SENTENCES, tiny_config, tiny_tokenizer

MIXED = ["the cat", "", *SENTENCES[:30], " ".join(SENTENCES[:5]), "dog", "the cat " * 500]


@pytest.fixture
def serving(kind):
    """A model and its tokenizer."""
    tokenizer = tiny_tokenizer(kind)
    torch.manual_seed(0)
    model = SimCSEModel(SimCSEConfig(backbone_config=tiny_config(kind)))
    return model.eval(), serving_tokenizer(tokenizer, template_token_ids(tokenizer), max_length=64)


@pytest.fixture
def seen(serving):
    """The shape `(B, T)` of every batch that the model reads."""
    shapes = []
    serving[0].register_forward_pre_hook(
        lambda model, args, inputs: shapes.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_order_is_kept_and_every_vector_is_that_of_its_text_alone(serving, batch_size):
    model, tokenizer = serving
    encoded = model.encode(MIXED, tokenizer, batch_size=batch_size)
    for text, vector in zip(MIXED, encoded, strict=True):
        alone = model(**tokenizer(text, truncation=True, return_tensors="pt")).pooler_output[0]
        np.testing.assert_allclose(vector, alone.detach().numpy(), atol=1e-6)


def test_a_batch_holds_so_many_texts_and_tokens_at_most_and_texts_of_similar_length(serving, seen):
    model, tokenizer = serving
    texts = [" ".join(["cat"] * (1 + number * 37 % 60)) for number in range(300)]
    model.encode(texts, tokenizer, batch_size=20)
    assert sum(rows for rows, _ in seen) == 300
    assert max(rows for rows, _ in seen) == 20 and max(rows * tokens for rows, tokens in seen) <= CPU_BATCH_TOKENS
    assert [tokens for _, tokens in seen] == sorted((tokens for _, tokens in seen), reverse=True)
    needed = sum(map(len, tokenizer(texts)["input_ids"]))
    assert sum(rows * tokens for rows, tokens in seen) < 1.1 * needed


def test_texts_are_sorted_by_what_the_model_reads_not_by_their_characters(serving, seen):
    model, tokenizer = serving
    kinds = ["supercalifragilistic" * 20] * 4, ["a b c d e f"] * 4  # the first is one unknown token to this BERT
    model.encode([*kinds[0], *kinds[1]], tokenizer, batch_size=4)
    tokens = [len(tokenizer(texts[0], truncation=True)["input_ids"]) for texts in kinds]
    assert seen == [(4, most) for most in sorted(tokens, reverse=True)]


def test_a_text_is_tokenised_once(serving):
    model, tokenizer = serving
    read = []

    def counting(texts, **options):
        read.extend(texts)
        return tokenizer(texts, **options)

    counting.pad_token_id = tokenizer.pad_token_id
    model.encode(MIXED, counting)
    assert read == MIXED


def test_one_text_none_and_an_array_of_them(serving):
    model, tokenizer = serving
    one = model.encode("the cat", tokenizer)
    assert one.shape == (32,) and one.dtype == np.float32
    assert model.encode([], tokenizer).shape == (0, 32)
    np.testing.assert_array_equal(model.encode(np.array(["the cat"]), tokenizer)[0], one)


def test_tensors_are_of_the_model_and_can_be_trained_on(serving):
    model, tokenizer = serving
    unit = model.encode(["the cat", "dog"], tokenizer, normalize_embeddings=True, convert_to_numpy=False)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(2))
    head = torch.nn.Linear(32, 1)
    head(unit).sum().backward()  # a tensor of inference mode could not be saved for it
    assert head.weight.grad is not None
    half = model.to(torch.bfloat16).encode(["the cat"], tokenizer, convert_to_numpy=False)
    assert half.dtype == torch.bfloat16 and model.encode(["the cat"], tokenizer).dtype == np.float32


def test_the_mode_of_the_model_stays(serving):
    model, tokenizer = serving
    model.train()
    model.encode(["the cat"], tokenizer)
    assert model.training


def test_without_a_tokenizer_it_is_said_where_one_comes_from(serving):
    with pytest.raises(ValueError, match="pass its tokenizer"):
        serving[0].encode("the cat")


def test_a_batch_size_of_none_is_refused(serving):
    model, tokenizer = serving
    with pytest.raises(ValueError, match="batch_size: 0 must be at least 1"):
        model.encode(["the cat"], tokenizer, batch_size=0)
