"""A criterion of an encoder that needs no labels, from sentences that it was not trained on.

`docs/tuning.md` compares it with five others: the regret of each, the dev score that is lost where it chooses the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from csezoo.modeling import objectives

from ..evaluation.sentence_vectors import Encode, vectors_of
from ..evaluation.tasks.sts import unit_vectors

# What `docs/tuning.md` has measured.
HOW_RELIABLE = """\
Without labels this is a hint: of 28 models that were better than their base on the STS tests, it called 25
better, and it was not tried on worse ones (docs/tuning.md). Grade some 200 pairs of your own to be sure."""
TEMPERATURE = 0.05
LEFT_OUT = 0.2  # the share of words that an edited sentence lacks
ROUNDING = 1e-5  # of losses that differ by less, neither is better


def held_out_loss(encode: Encode, sentences: Sequence[str]) -> float:
    """Return InfoNCE of sentences and the same sentences without a fifth of their words; lower is better.

    Args:
        encode: texts to vectors, `list[str] -> (n, d)`.
        sentences: `n` different sentences, two or more.

    References:
        Gao et al. 2021 (SimCSE), equation 1, at temperature 0.05.

    Example:
        >>> letters = lambda texts: np.array([[text.count(letter) for letter in "abc"] for text in texts], float)
        >>> round(held_out_loss(letters, ["a", "a b", "b c c"]), 4)
        0.4621
    """
    draw = np.random.default_rng(0)  # the same words each time
    edited = [_shortened(sentence, draw) for sentence in sentences]
    views = (torch.from_numpy(unit_vectors(vectors_of(encode, texts))) for texts in (list(sentences), edited))
    return objectives.info_nce(*views, temperature=TEMPERATURE).item()


def compare_without_labels(old: Encode, new: Encode, sentences: Sequence[str]) -> str:
    """Return the losses of two encoders on sentences that neither was trained on, and how far to trust them.

    Example:
        >>> letters = lambda texts: np.array([[text.count(letter) for letter in "abc"] for text in texts], float)
        >>> print(compare_without_labels(letters, letters, ["a", "a b", "b c c"]))
        contrastive loss on 3 held-out sentences, lower is better: old 0.4621, new 0.4621
        Neither model is better by it.
        Without labels this is a hint: of 28 models that were better than their base on the STS tests, it called 25
        better, and it was not tried on worse ones (docs/tuning.md). Grade some 200 pairs of your own to be sure.
    """
    before, after = (held_out_loss(encode, sentences) for encode in (old, new))
    equal = math.isclose(before, after, rel_tol=ROUNDING)
    better = "Neither model" if equal else "The new model" if after < before else "The old model"
    heading = f"contrastive loss on {len(sentences)} held-out sentences, lower is better"
    return f"{heading}: old {before:.4f}, new {after:.4f}\n{better} is better by it.\n{HOW_RELIABLE}"


def _shortened(sentence: str, draw: np.random.Generator) -> str:
    words = sentence.split()
    kept = [word for word in words if draw.random() >= LEFT_OUT]
    return " ".join(kept or words)
