"""Embedding lists of texts: vectors do not depend on other texts, and batches have a bounded number of tokens."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from sentence_transformers import SentenceTransformer, util

from csezoo.modeling import SimCSEConfig, SimCSEModel
from csezoo.modeling.serving.encoding_csezoo import CPU_BATCH_TOKENS, OUTPUT_VALUES
from csezoo.modeling.serving.quantization_csezoo import PRECISIONS
from csezoo.training.errors import UserError
from csezoo.training.evaluation.sentence_vectors import vectors_of
from csezoo.training.loading.templates import serving_tokenizer, template_token_ids
from tests.conftest import SENTENCES, tiny_config, tiny_tokenizer

MIXED = ["the cat", "", *SENTENCES[:30], " ".join(SENTENCES[:5]), "dog", "the cat " * 500]


@pytest.fixture
def model(kind):
    tokenizer = tiny_tokenizer(kind)
    torch.manual_seed(0)
    model = SimCSEModel(SimCSEConfig(backbone_config=tiny_config(kind))).eval()
    model.tokenizer = serving_tokenizer(tokenizer, template_token_ids(tokenizer), max_length=64)
    return model


@pytest.fixture
def seen(model):
    """The shape `(B, T)` of every batch that the model encodes."""
    shapes = []
    model.register_forward_pre_hook(
        lambda model, args, inputs: shapes.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_encode_keeps_the_order_and_vectors_do_not_depend_on_other_texts(model, batch_size):
    encoded = model.encode(MIXED, batch_size=batch_size)
    for text, vector in zip(MIXED, encoded, strict=True):
        alone = model(**model.tokenizer(text, truncation=True, return_tensors="pt")).pooler_output[0]
        np.testing.assert_allclose(vector, alone.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("array", [pa.array, lambda texts: pa.chunked_array([texts[:2], texts[2:]]), np.array])
def test_texts_may_be_an_array(model, array):
    assert np.array_equal(model.encode(array(MIXED)), model.encode(MIXED))
    with pytest.raises(TypeError, match="item 1 is None, not a string"):
        model.encode(pa.array(["the cat", None]))


def test_batches_have_similar_lengths_and_respect_both_limits(model, seen):
    texts = [" ".join(["cat"] * (1 + number * 37 % 60)) for number in range(300)]
    model.encode(texts, batch_size=20)
    assert sum(rows for rows, _ in seen) == 300
    assert max(rows for rows, _ in seen) == 20 and max(rows * tokens for rows, tokens in seen) <= CPU_BATCH_TOKENS
    assert [tokens for _, tokens in seen] == sorted((tokens for _, tokens in seen), reverse=True)
    needed = sum(map(len, model.tokenizer(texts)["input_ids"]))
    assert sum(rows * tokens for rows, tokens in seen) < 1.1 * needed


def test_texts_are_sorted_by_tokens_not_by_characters(model, seen):
    kinds = ["supercalifragilistic" * 20] * 4, ["a b c d e f"] * 4  # the first is one unknown token to this BERT
    model.encode([*kinds[0], *kinds[1]], batch_size=4)
    tokens = [len(model.tokenizer(texts[0], truncation=True)["input_ids"]) for texts in kinds]
    assert seen == [(4, most) for most in sorted(tokens, reverse=True)]


def test_a_text_is_tokenised_once(model):
    read = []

    class Counting(type(model.tokenizer)):
        def __call__(self, texts, **options):
            read.extend(texts)
            return super().__call__(texts, **options)

    model.tokenizer.__class__ = Counting
    model.encode(MIXED)
    assert read == MIXED


def test_a_change_of_the_tokenizer_counts_in_the_next_call(model):
    tokenizer = model.tokenizer
    long = " ".join(SENTENCES[:9])
    before = model.encode([long, "zebra"])
    tokenizer.truncation_side = "left"
    assert np.abs(model.encode(long) - before[0]).max() > 1e-4
    tokenizer.model_max_length = 9
    short = tokenizer(long, truncation=True, return_tensors="pt")
    assert short.input_ids.shape == (1, 9)
    np.testing.assert_allclose(model.encode(long), model(**short).pooler_output[0].detach(), atol=1e-6)
    tokenizer.add_tokens(["zebra"])
    model.resize_token_embeddings(len(tokenizer))
    assert np.abs(model.encode("zebra") - before[1]).max() > 1e-4


def test_encode_accepts_one_text_and_no_text(model):
    one = model.encode("the cat")
    assert one.shape == (32,) and one.dtype == np.float32
    assert model.encode([]).shape == (0, 32)


def test_encode_can_return_tensors_of_the_models_type_and_device(model):
    unit = model.encode(["the cat", "dog"], normalize_embeddings=True, convert_to_numpy=False)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(2))
    for output_value in OUTPUT_VALUES:
        head = torch.nn.Linear(32, 1)
        vectors = model.encode("the cat", output_value=output_value, convert_to_numpy=False)
        head(vectors).sum().backward()  # a tensor of inference mode could not be saved for it
        assert head.weight.grad.abs().sum() > 0
    half = model.to(torch.bfloat16).encode(["the cat"], convert_to_numpy=False)
    assert half.dtype == torch.bfloat16 and model.encode(["the cat"]).dtype == np.float32


@pytest.mark.parametrize("output_value", OUTPUT_VALUES)
def test_encode_does_not_need_named_outputs(model, output_value):
    expected = model.encode("the cat", output_value=output_value)
    model.config.return_dict = False
    assert isinstance(model(input_ids=torch.tensor([[5, 6]])), tuple)
    assert np.array_equal(model.encode("the cat", output_value=output_value), expected)


def test_tokens_can_be_added(model):
    expected = model.encode(MIXED[:9])
    model.resize_token_embeddings(len(model.tokenizer) + 3)
    assert model.config.vocab_size == model.config.backbone_config.vocab_size == len(model.tokenizer) + 3
    np.testing.assert_array_equal(model.encode(MIXED[:9]), expected)


def test_a_tokenizer_can_be_passed_and_the_error_without_one_says_so(model):
    tokenizer, expected = model.tokenizer, model.encode("the cat")
    model.tokenizer = None
    assert np.array_equal(model.encode("the cat", tokenizer), expected)
    with pytest.raises(ValueError, match=r"has no tokenizer; pass it: encode\(texts, tokenizer\)"):
        model.encode("the cat")


def test_padding_on_the_left_is_refused_where_it_would_change_a_vector(model):
    tokenizer = model.tokenizer
    expected = model.encode(MIXED)
    tokenizer.padding_side = "left"
    np.testing.assert_array_equal(model.encode(MIXED), expected)  # pads by itself
    with pytest.raises(ValueError, match='a row begins with padding.*tokenizer.padding_side = "right"'):
        model(**tokenizer(["the cat", "the cat sees the dog"], padding=True, return_tensors="pt"))
    model(**tokenizer(["the cat"] * 2, padding=True, return_tensors="pt"))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_truncated_then_normalised_then_quantised_as_sentence_transformers_does(
    model, tmp_path, precision, normalize
):
    model.save_pretrained(tmp_path / "model")
    theirs = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    options = {"normalize_embeddings": normalize, "truncate_dim": 20, "precision": precision}
    ours, expected = model.encode(SENTENCES, **options), theirs.encode(SENTENCES, **options)
    assert ours.dtype == expected.dtype and ours.shape == expected.shape
    if precision == "float32":
        np.testing.assert_allclose(ours, expected, atol=1e-6)
        if normalize:
            np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)
    else:  # a value at the end of a step may fall on either side of it
        assert (ours != expected).mean() < 0.01


def test_encode_takes_the_options_of_sentence_transformers(model):
    tensor = model.encode(SENTENCES[:3], convert_to_tensor=True, device="cpu", truncate_dim=100)
    assert isinstance(tensor, torch.Tensor) and tensor.shape == (3, 32)
    assert model.encode(SENTENCES[:3], convert_to_tensor=True, precision="binary").dtype == torch.int8
    assert model.encode("the cat", truncate_dim=5, precision="ubinary").shape == (1,)
    np.testing.assert_allclose(
        model.similarity(tensor.numpy(), tensor[0]).numpy(), util.cos_sim(tensor, tensor[0]).numpy(), atol=1e-6
    )


def test_query_and_document_are_prompts_of_every_model(model):
    for name in ("query", "document"):
        np.testing.assert_array_equal(model.encode("the cat", prompt_name=name), model.encode("the cat"))


def test_token_embeddings_are_the_last_layer_without_padding(model):
    encoded = model.encode(MIXED, output_value="token_embeddings")
    for text, vectors in zip(MIXED, encoded, strict=True):
        alone = model(**model.tokenizer(text, truncation=True, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(vectors, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.encode("the cat", output_value="token_embeddings"), encoded[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_name": "title"}, "prompt_name: 'title' is no prompt of this model, which has query, document"),
        ({"batch_size": 0}, "batch_size: 0 must be at least 1"),
        ({"truncate_dim": 0}, "truncate_dim: 0 must be at least 1"),
        ({"precision": "int4"}, "precision: 'int4' must be one of float32, int8"),
        ({"output_value": None}, "output_value: None must be one of sentence_embedding, token_embeddings"),
        ({"output_value": "token_embeddings", "truncate_dim": 4}, "output_value: token_embeddings are neither"),
        ({"precision": "int8"}, "precision: one text has no range"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.encode("the cat", **options)


@pytest.mark.parametrize("options", [{}, {"precision": "binary"}, {"convert_to_tensor": True}])
def test_a_vector_that_is_not_finite_is_refused(model, options):
    ids = model.tokenizer("dog").input_ids
    with torch.no_grad():
        model.backbone.get_input_embeddings().weight[ids[1]] = torch.nan
    assert model.encode(["the cat"], **options) is not None
    with pytest.raises(ValueError, match="texts: the vector of item 1 is not finite; check the weights"):
        model.encode(["the cat", "dog", "the house"], **options)
    with pytest.raises(UserError, match="encode: texts: the vector of item 0 is not finite"):
        vectors_of(model.encode, ["dog"])
