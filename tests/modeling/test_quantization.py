"""Quantised embeddings are those of sentence-transformers, bit for bit."""

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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_embeddings_keep_type_and_width(precision):
    empty = quantize_embeddings(torch.empty(0, 20), precision).numpy()
    expected = theirs(np.empty((0, 20), np.float32), precision)
    assert empty.shape == expected.shape and empty.dtype == expected.dtype


def test_ranges_of_few_embeddings_are_warned_about(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        quantization_ranges(torch.tensor(embeddings(99)))
    assert "the ranges of 99 embeddings" in caplog.text
