"""The papers' losses in float64 numpy, one anchor at a time.

`same` says which sentences of a batch `(N, N)` are one sentence: they are not each other's negatives.
"""

import numpy as np
import torch


def array(values):
    return values.detach().numpy() if isinstance(values, torch.Tensor) else values


def linear(layer, x):
    """What a linear layer gives, in numpy."""
    return array(x) @ array(layer.weight).T + array(layer.bias)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def none_same(vectors):
    return np.zeros((len(vectors), len(vectors)), bool)


def naive_softmax_loss(own, denominator):
    """-log(exp(own) / sum of exp over the denominator), exactly."""
    top = max(denominator)
    return top + np.log(sum(np.exp(value - top) for value in denominator)) - own


def numpy_info_nce(z1, z2, z3=None, temperature=0.05, weight=0.0, same=None):
    """SimCSE's equation; `weight` is the log weight of each anchor's own hard negative."""
    z1, z2 = unit(z1), unit(z2)
    same = none_same(z1) if same is None else same
    losses = []
    for i, anchor in enumerate(z1):
        logits = [anchor @ z2[j] / temperature for j in range(len(z2)) if not same[i, j]]
        if z3 is not None:
            hard = unit(z3)
            logits += [anchor @ hard[j] / temperature + (weight if i == j else 0) for j in range(len(hard))]
        losses.append(naive_softmax_loss(anchor @ z2[i] / temperature, logits))
    return float(np.mean(losses))


def numpy_prefix_contrastive(a, p, n, denominator, temperature, same=None):
    """PrdSimCSE's equation in each reading; `n` may be None."""
    a, p, n = (None if vectors is None else unit(vectors) for vectors in (a, p, n))
    same = none_same(a) if same is None else same
    losses = []
    for i in range(len(a)):
        others = [p[j] for j in range(len(a)) if not same[i, j]]
        if n is not None:
            others += [n[i]] if denominator == "own" else list(n)
        if denominator == "all":  # with `n`, one positive and N - 2 of the 3 x N vectors
            others += [a[j] for j in range(len(a)) if j != i and not same[i, j]]
        losses.append(naive_softmax_loss(a[i] @ p[i] / temperature, [a[i] @ other / temperature for other in others]))
    return np.mean(losses)


def numpy_self_guided(c, views, variant, layers, temperature, same=None):
    """The sums of SG-OPT's section 3."""
    c, views = unit(c), unit(views)
    b, count, _ = views.shape
    same = none_same(c) if same is None else same
    losses = []
    if variant == "opt3":
        for i in range(b):
            rows = [m for m in range(b) if m != i and not same[i, m]]
            others = [c[i] @ views[m, n] / temperature for m in rows for n in range(count)]
            for k in range(count):
                own = c[i] @ views[i, k] / temperature
                losses.append(naive_softmax_loss(own, [own, *others]))
        return np.mean(losses)
    h = np.stack([views[i, layers[i]] for i in range(b)])
    if variant == "base":
        x, mate = np.concatenate([c, h]), [*range(b, 2 * b), *range(b)]
        for m in range(2 * b):
            terms = [x[m] @ x[n] / temperature for n in range(2 * b) if n != m and not same[m % b, n % b]]
            losses.append(naive_softmax_loss(x[m] @ x[mate[m]] / temperature, terms))
        return np.mean(losses)
    for i in range(b):
        terms = [c[i] @ h[j] / temperature for j in range(b) if not same[i, j]]
        if variant == "opt1":
            terms += [c[i] @ c[j] / temperature for j in range(b) if j != i and not same[i, j]]
        losses.append(naive_softmax_loss(c[i] @ h[i] / temperature, terms))
    return np.mean(losses)
