"""The papers' losses in float64 numpy, one anchor at a time."""

import numpy as np


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def numpy_info_nce(z1, z2, z3=None, temperature=0.05, weight=0.0):
    """The loss from the equation, one anchor at a time."""
    z1, z2 = unit(z1), unit(z2)
    losses = []
    for i, anchor in enumerate(z1):
        logits = [anchor @ other / temperature for other in z2]
        if z3 is not None:
            hard = unit(z3)
            logits += [anchor @ hard[j] / temperature + (weight if i == j else 0) for j in range(len(hard))]
        top = max(logits)
        losses.append(top + np.log(sum(np.exp(logit - top) for logit in logits)) - logits[i])
    return float(np.mean(losses))


def naive_softmax_loss(own, denominator):
    """-log(exp(own) / sum of exp over the denominator), exactly."""
    top = max(denominator)
    return top + np.log(sum(np.exp(value - top) for value in denominator)) - own


def numpy_self_guided(c, views, variant, layers, temperature):
    """The sums of SG-OPT's section 3, one anchor at a time."""
    c = unit(c)
    views = views / np.linalg.norm(views, axis=2, keepdims=True)
    b, count, _ = views.shape
    losses = []
    if variant == "opt3":
        for i in range(b):
            others = [c[i] @ views[m, n] / temperature for m in range(b) if m != i for n in range(count)]
            for k in range(count):
                own = c[i] @ views[i, k] / temperature
                losses.append(naive_softmax_loss(own, [own, *others]))
        return np.mean(losses)
    h = np.stack([views[i, layers[i]] for i in range(b)])
    if variant == "base":
        x, mate = np.concatenate([c, h]), [*range(b, 2 * b), *range(b)]
        for m in range(2 * b):
            terms = [x[m] @ x[n] / temperature for n in range(2 * b) if n != m]
            losses.append(naive_softmax_loss(x[m] @ x[mate[m]] / temperature, terms))
        return np.mean(losses)
    for i in range(b):
        terms = [c[i] @ h[j] / temperature for j in range(b)]
        if variant == "opt1":
            terms += [c[i] @ c[j] / temperature for j in range(b) if j != i]
        losses.append(naive_softmax_loss(c[i] @ h[i] / temperature, terms))
    return np.mean(losses)
