"""Quantised embeddings are those of sentence-transformers, bit for bit, and of the formula in float64."""

import logging

import numpy as np
import pytest
import torch
from sentence_transformers.util.quantization import quantize_embeddings as theirs

from csezoo.modeling.serving.quantization_csezoo import PRECISIONS, quantization_ranges, quantize_embeddings


def embeddings(rows=300, size=20):
    draw = np.random.default_rng(0)
    return (draw.standard_normal((rows, size)) * draw.uniform(0.1, 3, size)).astype(np.float32)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [8, 20])
def test_the_numbers_are_those_of_sentence_transformers(precision, size):
    given = embeddings(size=size)
    given[:, 3] = 0.25  # a dimension with one value has no range
    given[0, 0] = 0.0  # the sign of zero is not positive
    ours, expected = quantize_embeddings(torch.tensor(given), precision).numpy(), theirs(given, precision)
    assert ours.dtype == expected.dtype
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_ranges_of_other_embeddings_are_used_and_values_outside_are_clipped(precision):
    corpus, queries = embeddings(), 2 * embeddings(5)
    ranges = quantization_ranges(torch.tensor(corpus))
    ours = quantize_embeddings(torch.tensor(queries), precision, ranges).numpy()
    np.testing.assert_array_equal(ours, theirs(queries, precision, ranges=ranges.numpy()))
    assert ours.min() == np.iinfo(ours.dtype).min and ours.max() == np.iinfo(ours.dtype).max


def test_a_number_restores_its_value_to_one_step():
    given = embeddings()
    numbers = quantize_embeddings(torch.tensor(given), "uint8").numpy().astype(np.float64)
    least, most = given.min(0).astype(np.float64), given.max(0).astype(np.float64)
    step = (most - least) / 255
    # The number is the lower end of a step; float32 decides at its ends.
    error = given - (least + numbers * step)
    assert (error >= -1e-4 * step).all() and (error <= (1 + 1e-4) * step).all()


def test_a_bit_is_the_sign_of_its_dimension():
    given = embeddings(size=20)
    bits = np.unpackbits(quantize_embeddings(torch.tensor(given), "ubinary").numpy(), axis=1)
    np.testing.assert_array_equal(bits[:, :20], given > 0)
    assert bits.shape == (300, 24) and not bits[:, 20:].any()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_embeddings_keep_type_and_width(precision):
    empty = quantize_embeddings(torch.empty(0, 20), precision).numpy()
    expected = theirs(np.empty((0, 20), np.float32), precision)
    assert empty.shape == expected.shape and empty.dtype == expected.dtype


def test_ranges_need_more_than_one_embedding_and_few_are_warned_about(caplog):
    with pytest.raises(ValueError, match="precision: .* a single text; encode many texts in one call"):
        quantize_embeddings(torch.zeros(1, 4), "int8")
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING):
        quantization_ranges(torch.tensor(embeddings(99)))
    assert "the ranges of 99 embeddings" in caplog.text


def test_an_unknown_precision_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="precision: 'int4' must be one of float32, int8, uint8, binary, ubinary"):
        quantize_embeddings(torch.zeros(2, 4), "int4")
