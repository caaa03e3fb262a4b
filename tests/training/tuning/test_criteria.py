"""The criterion without labels against its formula in numpy, float64."""

import math

import numpy as np
import pytest

from csezoo.training.errors import UserError
from csezoo.training.tuning.criteria import compare_without_labels, held_out_loss

SENTENCES = ["a dog runs home", "a dog sleeps", "two cats sleep at home", "the sun is hot", "the sun is cold now"]


def vectors_of(texts):
    """Random, but the same for the same text."""
    return np.stack([np.random.default_rng(sum(text.encode())).normal(size=6) for text in texts])


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_loss_is_that_of_sentences_without_some_words():
    calls = []

    def encode(texts):
        calls.append(list(texts))
        return vectors_of(texts)

    loss = held_out_loss(encode, SENTENCES)
    whole, edited = calls
    assert whole == SENTENCES and edited != SENTENCES
    for sentence, shorter in zip(whole, edited, strict=True):
        assert shorter and set(shorter.split()) <= set(sentence.split())
    logits = unit(vectors_of(whole)) @ unit(vectors_of(edited)).T / 0.05
    losses = [math.log(sum(math.exp(logit) for logit in row)) - row[i] for i, row in enumerate(logits)]
    assert loss == pytest.approx(np.mean(losses))
    assert held_out_loss(vectors_of, SENTENCES) == loss  # again


def test_a_model_without_numbers_is_not_compared():
    with pytest.raises(UserError, match="not finite"):
        compare_without_labels(vectors_of, lambda texts: np.full((len(texts), 6), np.nan), SENTENCES)


def test_of_losses_that_rounding_alone_moves_neither_is_better():
    rounded = compare_without_labels(vectors_of, lambda texts: vectors_of(texts).round(7), SENTENCES)
    assert "Neither model is better by it." in rounded
    noisy = compare_without_labels(vectors_of, lambda texts: vectors_of(texts).round(1), SENTENCES)
    assert "Neither" not in noisy
