"""Criteria without labels against their formulas in numpy, float64."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from csezoo.training.tuning.criteria import held_out_criteria

SENTENCES = ["a dog runs home", "a dog sleeps", "two cats sleep at home", "the sun is hot", "the sun is cold now"]


def vectors_of(texts):
    """Random, but the same for the same text."""
    return np.stack([np.random.default_rng(sum(text.encode())).normal(size=6) for text in texts])


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def seen():
    """The texts that were encoded: the sentences, and the same without some words."""
    calls = []

    def encode(texts):
        calls.append(list(texts))
        return vectors_of(texts)

    values = held_out_criteria(encode, SENTENCES)
    return values, calls


def test_words_are_left_out_and_never_all(seen):
    _, (whole, edited) = seen
    assert whole == SENTENCES and edited != SENTENCES
    for sentence, shorter in zip(whole, edited, strict=True):
        assert shorter and set(shorter.split()) <= set(sentence.split())
    assert held_out_criteria(vectors_of, SENTENCES) == seen[0]  # pure in the seed


def test_alignment_uniformity_and_held_out_loss_equal_their_formulas(seen):
    values, (whole, edited) = seen
    x, y = unit(vectors_of(whole)), unit(vectors_of(edited))
    n = len(x)
    assert values["alignment"] == pytest.approx(-np.mean(((x - y) ** 2).sum(1)))
    potentials = [math.exp(-2 * ((x[i] - x[j]) ** 2).sum()) for i in range(n) for j in range(i)]
    assert values["uniformity"] == pytest.approx(-math.log(sum(potentials) / len(potentials)))
    assert values["alignment+uniformity"] == values["alignment"] + values["uniformity"]
    logits = x @ y.T / 0.05
    losses = [math.log(sum(math.exp(logit) for logit in logits[i])) - logits[i, i] for i in range(n)]
    assert values["held-out-loss"] == pytest.approx(-np.mean(losses))


def test_effective_rank_and_word_overlap_equal_their_formulas(seen):
    values, (whole, _) = seen
    x, n = unit(vectors_of(whole)), len(whole)
    singular = np.sqrt(np.clip(np.linalg.eigvalsh(x @ x.T), 0, None))
    share = singular / singular.sum()
    assert values["effective-rank"] == pytest.approx(math.exp(-sum(p * math.log(p) for p in share)))
    words = sorted({word for sentence in whole for word in sentence.split()})
    rarity = [math.log(n / sum(word in sentence.split() for sentence in whole)) for word in words]
    bags = unit(np.array([[rarity[k] * (w in sentence.split()) for k, w in enumerate(words)] for sentence in whole]))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]  # all: there are fewer than 20 others
    cosines, overlaps = [x[i] @ x[j] for i, j in pairs], [round(bags[i] @ bags[j], 6) for i, j in pairs]
    assert values["word-overlap"] == pytest.approx(spearmanr(cosines, overlaps).statistic, abs=1e-3)
