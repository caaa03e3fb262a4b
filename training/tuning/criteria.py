"""Criteria of an encoder that need no labels, from sentences that it was not trained on.

`docs/tuning.md` has what each costs: the regret, the dev score that is lost where a criterion chooses the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import spearmanr

from csezoo.modeling import objectives

from ..evaluation.sentence_vectors import Encode
from ..evaluation.tasks.sts import unit_vectors

# The criterion with the smallest regret.
CRITERION = "held-out-loss"
# What `docs/tuning.md` has measured.
HOW_RELIABLE = """\
Without labels this is a hint: of 28 models that were better than their base on the STS tests, it called 25
better, and it was not tried on worse ones (docs/tuning.md). Grade some 200 pairs of your own to be sure."""
TEMPERATURE = 0.05
LEFT_OUT = 0.2  # the share of words that an edited sentence lacks
PAIRS = 20  # for each sentence, how many others it is compared with


def held_out_criteria(encode: Encode, sentences: Sequence[str], seed: int = 0) -> dict[str, float]:
    """Return every criterion; higher is better.

    Args:
        encode: texts to vectors, `list[str] -> (n, d)`.
        sentences: `n` different sentences, two or more.
        seed: of the words that are left out.

    Returns:
        `uniformity`: minus the uniformity of the sentences (Wang, Isola 2020). `alignment`: minus the mean squared
        distance of a sentence to itself with a fifth of its words left out. `alignment+uniformity`: their sum.
        `held-out-loss`: minus InfoNCE of these pairs at temperature 0.05 (SimCSE, equation 1). `effective-rank`: the
        exponential of the entropy of the singular values (Garrido et al. 2023, RankMe). `word-overlap`: Spearman's
        correlation of the cosine of two sentences with that of their bags of words, weighted by rarity.

    Example:
        >>> letters = lambda texts: np.array([[text.count(letter) for letter in "abc"] for text in texts], float)
        >>> round(held_out_criteria(letters, ["a", "a b", "b c c"])["effective-rank"], 2)
        2.78
    """
    draw = np.random.default_rng(seed)
    whole = unit_vectors(encode(list(sentences)))
    edited = unit_vectors(encode([_shortened(sentence, draw) for sentence in sentences]))
    pairs = torch.from_numpy(whole), torch.from_numpy(edited)
    alignment, uniformity = -objectives.alignment(*pairs).item(), -objectives.uniformity(pairs[0]).item()
    singular = np.linalg.svd(whole, compute_uv=False)
    share = singular[singular > 0] / singular.sum()
    return {
        "uniformity": uniformity,
        "alignment": alignment,
        "alignment+uniformity": alignment + uniformity,
        "held-out-loss": -objectives.info_nce(*pairs, temperature=TEMPERATURE).item(),
        "effective-rank": float(np.exp(-(share * np.log(share)).sum())),
        "word-overlap": _word_overlap(whole, sentences),
    }


def compare_without_labels(old: Encode, new: Encode, sentences: Sequence[str]) -> str:
    """Return what `CRITERION` says of two encoders on sentences that neither was trained on, and how far to trust it.

    Example:
        >>> letters = lambda texts: np.array([[text.count(letter) for letter in "abc"] for text in texts], float)
        >>> print(compare_without_labels(letters, letters, ["a", "a b", "b c c"]))
        contrastive loss on 3 held-out sentences, lower is better: old 0.4621, new 0.4621
        Neither model is better by it.
        Without labels this is a hint: of 28 models that were better than their base on the STS tests, it called 25
        better, and it was not tried on worse ones (docs/tuning.md). Grade some 200 pairs of your own to be sure.
    """
    before, after = (-held_out_criteria(encode, sentences)[CRITERION] for encode in (old, new))
    better = "Neither model" if after == before else "The new model" if after < before else "The old model"
    heading = f"contrastive loss on {len(sentences)} held-out sentences, lower is better"
    return f"{heading}: old {before:.4f}, new {after:.4f}\n{better} is better by it.\n{HOW_RELIABLE}"


def _shortened(sentence: str, draw: np.random.Generator) -> str:
    words = sentence.split()
    kept = [word for word in words if draw.random() >= LEFT_OUT]
    return " ".join(kept or words)


def _word_overlap(vectors: np.ndarray, sentences: Sequence[str]) -> float:
    """Compare each sentence with those that share most with it: other pairs have no word in common.

    The similarity of words is the cosine of bags of words, in which a word that `n` of `N` sentences have weighs
    log(N / n).
    """
    bags = [set(sentence.lower().split()) for sentence in sentences]
    frequency = Counter(word for bag in bags for word in bag)
    columns = {word: number for number, word in enumerate(frequency)}
    weighted = np.zeros((len(bags), len(columns)), np.float32)
    for row, bag in zip(weighted, bags, strict=True):
        for word in bag:
            row[columns[word]] = np.log(len(bags) / frequency[word])
    words = unit_vectors(weighted)
    overlap, cosine = words @ words.T, vectors @ vectors.T
    np.fill_diagonal(overlap, -1)
    near = np.argsort(-overlap, axis=1, kind="stable")[:, : min(PAIRS, len(bags) - 1)]
    rows = np.arange(len(bags))[:, None]
    return float(spearmanr(cosine[rows, near].ravel(), overlap[rows, near].ravel()).statistic)
