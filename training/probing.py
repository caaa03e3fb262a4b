"""Logistic regression on frozen embeddings as SentEval trains it, all folds and penalties at once.

SentEval fits one small classifier after another: Adam on shuffled batches, early stopping on held-out accuracy, a grid
of L2 penalties, nested folds. Those of one task differ in their rows and their penalty alone, so here they are one
batched matrix product: the same updates in the same order, in a fraction of the time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from tqdm.auto import trange

SEED = 1111
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
MAX_EPOCHS = 200
Split = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Protocol:
    """How SentEval is told to train its classifiers.

    Args:
        folds: of cross-validation, inner and outer.
        optimizer: `adam` (rate 1e-3) or `rmsprop` (rate 1e-2), with the defaults of torch.
        batch_size: rows an update.
        tenacity: checks without a better held-out accuracy before it stops.
        epoch_size: epochs between two checks.
    """

    folds: int
    optimizer: str
    batch_size: int
    tenacity: int
    epoch_size: int


PROTOCOLS = {
    "default": Protocol(folds=10, optimizer="adam", batch_size=64, tenacity=5, epoch_size=4),
    "fast": Protocol(folds=5, optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2),  # SimCSE's
}


def stratified_folds(labels: np.ndarray, folds: int) -> list[Split]:
    """SentEval's folds: shuffled, stratified, always the same."""
    splitter = StratifiedKFold(n_splits=folds, shuffle=True, random_state=SEED)
    return list(splitter.split(np.zeros(len(labels)), labels))


def nested_folds(features: np.ndarray, labels: np.ndarray, protocol: Protocol) -> tuple[float, float]:
    """Accuracies (× 100) of nested cross-validation: of the inner folds' best penalty, and on the outer folds.

    Args:
        features: `(n, d)`.
        labels: `(n,)`, numbers from 0.
    """
    outer = stratified_folds(labels, protocol.folds)
    inner = [
        [(train[fit], train[held]) for fit, held in stratified_folds(labels[train], protocol.folds)]
        for train, _ in outer
    ]
    flat = [split for splits in inner for split in splits]
    scores = fit(features, labels, flat, np.tile(PENALTIES, (len(flat), 1)), protocol)[1]  # (outer · inner, P)
    dev = np.round(100 * scores.reshape(len(outer), protocol.folds, -1).mean(1), 2)  # (outer, P), tied as in SentEval
    chosen = np.array(PENALTIES)[dev.argmax(1)]
    test = _fit_and_test(features, labels, outer, chosen, protocol)
    return float(dev.max(1).mean()), 100 * float(test.mean())


def folds_then_test(
    features: np.ndarray, labels: np.ndarray, train: np.ndarray, test: np.ndarray, protocol: Protocol
) -> tuple[float, float]:
    """Accuracies (× 100) on the folds of the training rows, which choose the penalty, and on the test rows."""
    folds = [(train[fit], train[held]) for fit, held in stratified_folds(labels[train], protocol.folds)]
    scores = fit(features, labels, folds, np.tile(PENALTIES, (len(folds), 1)), protocol)[1]
    dev = np.round(100 * scores.mean(0), 2)
    accuracy = _fit_and_test(features, labels, [(train, test)], np.array([PENALTIES[dev.argmax()]]), protocol)
    return float(dev.max()), 100 * float(accuracy[0])


def dev_then_test(
    features: np.ndarray, labels: np.ndarray, train: np.ndarray, dev: np.ndarray, test: np.ndarray, protocol: Protocol
) -> tuple[float, float]:
    """Accuracies (× 100) on given dev rows, which choose the penalty, and on the test rows."""
    weights, scores = fit(features, labels, [(train, dev)], np.array([PENALTIES]), protocol)
    best = int(scores[0].argmax())
    chosen = tuple(part[:, best : best + 1] for part in weights)
    return 100 * float(scores[0, best]), 100 * float(accuracies(features, labels, [test], chosen)[0, 0])


def _fit_and_test(features, labels, splits: list[Split], penalties: np.ndarray, protocol: Protocol) -> np.ndarray:
    """Fit each split's training rows but a twentieth, which stops it early; accuracy on its test rows."""
    random = [np.random.RandomState(SEED) for _ in splits]
    shuffled = [train[generator.permutation(len(train))] for (train, _), generator in zip(splits, random, strict=True)]
    held = [(rows[len(rows) // 20 :], rows[: len(rows) // 20]) for rows in shuffled]
    weights, _ = fit(features, labels, held, penalties[:, None], protocol, random)
    return accuracies(features, labels, [test for _, test in splits], weights)[:, 0]


def fit(
    features: np.ndarray,
    labels: np.ndarray,
    splits: list[Split],
    penalties: np.ndarray,
    protocol: Protocol,
    random: list[np.random.RandomState] | None = None,
) -> tuple[tuple[torch.Tensor, torch.Tensor], np.ndarray]:
    """Train a classifier for each split and penalty, each until its own held-out accuracy has stopped rising.

    Args:
        features: `(n, d)`.
        splits: rows to train on and rows held out.
        penalties: `(splits, P)`, the optimizer's weight decay.
        random: where each split's shuffling goes on, if something was drawn before.

    Returns:
        Weights `(splits, P, d, classes)` and biases `(splits, P, 1, classes)` at the best check, and its held-out
        accuracy `(splits, P)`.
    """
    rows, targets = torch.from_numpy(features), torch.from_numpy(labels)
    classes, (count, grid) = int(labels.max()) + 1, penalties.shape
    torch_state = torch.get_rng_state()
    torch.manual_seed(SEED)
    start = torch.nn.Linear(features.shape[1], classes)
    torch.set_rng_state(torch_state)
    weights = [
        start.weight.detach().T.expand(count, grid, -1, -1).clone(),
        start.bias.detach().expand(count, grid, 1, -1).clone(),
    ]
    optimizer = _Optimizer(protocol.optimizer, weights, torch.from_numpy(penalties).float())
    random = random or [np.random.RandomState(SEED) for _ in splits]
    best, best_scores = [part.clone() for part in weights], torch.full((count, grid), -1.0, dtype=torch.float64)
    checks_without = torch.zeros(count, grid, dtype=torch.long)
    running = torch.ones(count, grid, dtype=torch.bool)
    bar = {"desc": f"Fitting {count * grid} classifiers", "leave": None, "disable": not sys.stderr.isatty()}
    for _ in trange(0, MAX_EPOCHS + 1, protocol.epoch_size, **bar):
        for _ in range(protocol.epoch_size):
            draws = zip(splits, random, strict=True)
            orders = [train[generator.permutation(len(train))] for (train, _), generator in draws]
            _epoch(rows, targets, orders, weights, optimizer, protocol.batch_size)
        scores = torch.from_numpy(accuracies(features, labels, [held for _, held in splits], tuple(weights)))
        better = running & (scores > best_scores)
        for part, kept in zip(weights, best, strict=True):
            kept[better] = part[better]
        best_scores[better] = scores[better]
        running &= better | (checks_without < protocol.tenacity)
        checks_without += ~better
        if not running.any():
            break
    return tuple(best), best_scores.numpy()


def _epoch(rows, targets, orders: list[np.ndarray], weights, optimizer: _Optimizer, batch_size: int) -> None:
    """One pass over each split's rows in its own order; splits may differ in length by a few rows."""
    longest = max(map(len, orders))
    padded = torch.from_numpy(np.stack([np.pad(order, (0, longest - len(order))) for order in orders]))
    real = torch.from_numpy(np.stack([np.arange(longest) < len(order) for order in orders]))
    weight, bias = weights
    (count, grid, dimensions, classes) = weight.shape
    for first in range(0, longest, batch_size):
        index, mask = padded[:, first : first + batch_size], real[:, first : first + batch_size]
        batch = rows[index]  # (S, b, d)
        flat = weight.transpose(1, 2).reshape(count, dimensions, grid * classes)
        logits = torch.bmm(batch, flat).unflatten(2, (grid, classes)) + bias.transpose(1, 2)  # (S, b, P, C)
        wanted = F.one_hot(targets[index], classes)[:, :, None]
        sizes = mask.sum(1)
        error = (logits.softmax(-1) - wanted) * (mask / sizes.clamp(min=1)[:, None])[..., None, None]
        slope = torch.bmm(batch.transpose(1, 2), error.flatten(2)).unflatten(2, (grid, classes)).transpose(1, 2)
        optimizer.step([slope, error.sum(1)[:, :, None]], sizes > 0)


def accuracies(features: np.ndarray, labels: np.ndarray, rows: list[np.ndarray], weights) -> np.ndarray:
    """Share of each split's rows that each of its classifiers gets right, `(splits, P)`."""
    made = []
    for index, weight, bias in zip(rows, *weights, strict=True):
        guesses = (torch.from_numpy(features[index]) @ weight + bias).argmax(-1)  # (P, m)
        made.append((guesses == torch.from_numpy(labels[index])).double().mean(1))
    return torch.stack(made).numpy()


class _Optimizer:
    """Adam or RMSprop as torch has them, on stacked classifiers with a penalty each; a split without rows rests."""

    def __init__(self, name: str, weights: list[torch.Tensor], penalties: torch.Tensor):
        self.name, self.weights, self.penalties = name, weights, penalties[..., None, None]
        self.first = [torch.zeros_like(part) for part in weights]
        self.second = [torch.zeros_like(part) for part in weights]
        self.steps = torch.zeros(len(penalties), 1, 1, 1)

    def step(self, gradients: list[torch.Tensor], active: torch.Tensor) -> None:
        active = active.float()[:, None, None, None]
        self.steps += active
        for part, gradient, first, second in zip(self.weights, gradients, self.first, self.second, strict=True):
            gradient = gradient + self.penalties * part
            if self.name == "rmsprop":
                second += active * 0.01 * (gradient.square() - second)
                part -= active * 1e-2 * gradient / (second.sqrt() + 1e-8)
                continue
            first += active * 0.1 * (gradient - first)
            second += active * 0.001 * (gradient.square() - second)
            scale = (second / (1 - 0.999**self.steps)).sqrt() + 1e-8
            part -= active * 1e-3 * first / (1 - 0.9**self.steps) / scale
