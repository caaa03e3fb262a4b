"""Train classifiers on frozen embeddings by SentEval's protocol, with all folds and penalties at once.

SentEval fits one small classifier after another: Adam on shuffled batches, early stopping on held-out accuracy, a grid
of L2 penalties, nested folds. The classifiers of a task differ only in their rows and their penalty. Here one batched
matrix product updates them all: the same updates in the same order, in a fraction of the time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from tqdm.auto import trange

SEED = 1111
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
MAX_EPOCHS = 200
Split = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Protocol:
    """SentEval's settings for training its classifiers."""

    folds: int  # folds of cross-validation, inner and outer
    optimizer: str  # `adam` (learning rate 1e-3) or `rmsprop` (1e-2), otherwise with torch's defaults
    batch_size: int  # rows per update
    tenacity: int  # checks without a better held-out accuracy before training stops
    epoch_size: int  # epochs between two checks
    hidden: int = 0  # units of a hidden layer with a sigmoid; 0 is logistic regression

    @property
    def classifier(self) -> str:
        return f"network with {self.hidden} hidden units" if self.hidden else "logistic regression"


PROTOCOLS = {
    "default": Protocol(folds=10, optimizer="adam", batch_size=64, tenacity=5, epoch_size=4),
    "fast": Protocol(folds=5, optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2),  # SimCSE's
    "mlp": Protocol(folds=10, optimizer="adam", batch_size=64, tenacity=5, epoch_size=4, hidden=50),  # SG-OPT's
}


def stratified_folds(labels: np.ndarray, folds: int) -> list[Split]:
    """Return SentEval's folds: shuffled with a fixed seed, and stratified."""
    from sklearn.model_selection import StratifiedKFold  # a second of processor time, also for other tasks

    splitter = StratifiedKFold(n_splits=folds, shuffle=True, random_state=SEED)
    return list(splitter.split(np.zeros(len(labels)), labels))


def folds_then_test(
    features: np.ndarray, labels: np.ndarray, splits: list[Split], protocol: Protocol
) -> tuple[float, float]:
    """Score on splits: folds of the training rows choose the penalty of each, and its test rows test it.

    Args:
        features: `(n, d)`.
        labels: `(n,)`, numbers from 0.
        splits: one; or the outer folds of a nested cross-validation.

    Returns:
        Mean accuracy (× 100) of the chosen penalties on the folds, and on the test rows.
    """
    folds = [
        (train[others], train[held])
        for train, _ in splits
        for others, held in stratified_folds(labels[train], protocol.folds)
    ]
    scores = fit(features, labels, folds, np.tile(PENALTIES, (len(folds), 1)), protocol)[1]  # (splits · folds, P)
    # (splits, P), tied as in SentEval
    dev = np.round(100 * scores.reshape(len(splits), protocol.folds, -1).mean(1), 2)
    chosen = np.array(PENALTIES)[dev.argmax(1)]
    test = _fit_and_test(features, labels, splits, chosen, protocol)
    return float(dev.max(1).mean()), 100 * float(test.mean())


def dev_then_test(
    features: np.ndarray, labels: np.ndarray, train: np.ndarray, dev: np.ndarray, test: np.ndarray, protocol: Protocol
) -> tuple[float, float]:
    """Return the accuracy (× 100) on the dev rows, which choose the penalty, and on the test rows."""
    weights, scores = fit(features, labels, [(train, dev)], np.array([PENALTIES]), protocol)
    best = int(scores[0].argmax())
    chosen = [part[:, best : best + 1] for part in weights]
    return 100 * float(scores[0, best]), 100 * float(accuracies(features, labels, [test], chosen)[0, 0])


def _fit_and_test(
    features: np.ndarray, labels: np.ndarray, splits: list[Split], penalties: np.ndarray, protocol: Protocol
) -> np.ndarray:
    """Train on each split's training rows, with a twentieth held out for early stopping; return its test accuracy."""
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
) -> tuple[list[torch.Tensor], np.ndarray]:
    """Train a classifier for each split and penalty, each until its held-out accuracy has stopped rising.

    It is softmax(W x + b), or softmax(W₂ σ(W₁ x + b₁) + b₂) with a hidden layer, trained by cross-entropy.

    Args:
        features: `(n, d)`.
        splits: for each split, rows to train on and rows held out.
        penalties: `(splits, P)`, the optimizer's weight decay.
        random: the generator that shuffles each split; a new one with SentEval's seed by default.

    Returns:
        Weights `(splits, P, classes, d)` and biases `(splits, P, classes, 1)` of every layer at the best check, and
        its held-out accuracy `(splits, P)`.
    """
    rows, targets = torch.from_numpy(features), F.one_hot(torch.from_numpy(labels)).float()
    (count, grid), classes = penalties.shape, targets.shape[1]
    torch_state = torch.get_rng_state()
    torch.manual_seed(SEED)
    sizes = [features.shape[1], *([protocol.hidden] if protocol.hidden else []), classes]
    layers = [torch.nn.Linear(*ends) for ends in zip(sizes, sizes[1:], strict=False)]
    torch.set_rng_state(torch_state)
    weights = [
        part.detach().reshape(1, 1, len(layer.bias), -1).repeat(count, grid, 1, 1)
        for layer in layers
        for part in (layer.weight, layer.bias)
    ]
    optimizer = _Optimizer(protocol.optimizer, weights, torch.from_numpy(penalties).float())
    random = random or [np.random.RandomState(SEED) for _ in splits]
    best, best_scores = [part.clone() for part in weights], torch.full((count, grid), -1.0, dtype=torch.float64)
    checks_without = torch.zeros(count, grid, dtype=torch.long)
    running = torch.ones(count, grid, dtype=torch.bool)
    alive = torch.arange(count)  # splits with a classifier that is still training
    bar = {"desc": f"Fitting {count * grid} classifiers", "leave": None, "disable": not sys.stderr.isatty()}
    for _ in trange(0, MAX_EPOCHS + 1, protocol.epoch_size, **bar):
        for _ in range(protocol.epoch_size):
            draws = [(splits[i][0], random[i]) for i in alive]
            orders = [train[generator.permutation(len(train))] for train, generator in draws]
            _epoch(rows, targets, orders, weights, optimizer, protocol.batch_size)
        scores = torch.from_numpy(accuracies(features, labels, [splits[i][1] for i in alive], weights))
        better = running[alive] & (scores > best_scores[alive])
        for part, kept in zip(weights, best, strict=True):
            kept[alive] = torch.where(better[:, :, None, None], part, kept[alive])
        best_scores[alive] = torch.where(better, scores, best_scores[alive])
        running[alive] &= better | (checks_without[alive] < protocol.tenacity)
        checks_without[alive] += ~better
        going = running[alive].any(1)
        alive, weights = alive[going], optimizer.keep(going)
        if not len(alive):
            break
    return best, best_scores.numpy()


def _epoch(
    rows: torch.Tensor,
    targets: torch.Tensor,
    orders: list[np.ndarray],
    weights: list[torch.Tensor],
    optimizer: _Optimizer,
    batch_size: int,
) -> None:
    """Make one pass over each split's rows in the given order. Splits may differ in length by a few rows."""
    longest = max(map(len, orders))
    padded = torch.from_numpy(np.stack([np.pad(order, (0, longest - len(order))) for order in orders]))
    real = torch.from_numpy(np.stack([np.arange(longest) < len(order) for order in orders]))
    memory = rows.new_empty(len(orders) * batch_size, rows.shape[1])  # for every batch
    for first in range(0, longest, batch_size):
        index, mask = padded[:, first : first + batch_size], real[:, first : first + batch_size]
        chosen = torch.index_select(rows, 0, index.flatten(), out=memory[: index.numel()])
        batch = chosen.unflatten(0, index.shape)  # (S, b, d)
        hidden, logits = _predict(batch, weights)  # (S, P, C, b)
        sizes = mask.sum(1)
        share = (mask / sizes.clamp(min=1)[:, None])[:, None, None]
        error = (logits.softmax(2) - targets[index].transpose(1, 2)[:, None]) * share
        slopes: list[torch.Tensor] = []
        if hidden is not None:
            slopes = [error @ hidden.transpose(2, 3), error.sum(3, keepdim=True)]
            error = (weights[2].transpose(2, 3) @ error) * hidden * (1 - hidden)
        slope = torch.bmm(error.flatten(1, 2), batch).unflatten(1, error.shape[1:3])
        optimizer.step([slope, error.sum(3, keepdim=True), *slopes], sizes > 0)


def _predict(batch: torch.Tensor, weights: list[torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the hidden units `(S, P, hidden, b)`, if there are any, and the logits `(S, P, C, b)` of `(S, b, d)`.

    The long dimensions, rows and features, are last: the products and the optimizer then take half the time.
    """
    weight, bias, *last = weights
    values = torch.bmm(weight.flatten(1, 2), batch.transpose(1, 2)).unflatten(1, weight.shape[1:3]) + bias
    if not last:
        return None, values
    hidden = values.sigmoid_()
    return hidden, last[0] @ hidden + last[1]


def accuracies(
    features: np.ndarray, labels: np.ndarray, rows: list[np.ndarray], weights: list[torch.Tensor]
) -> np.ndarray:
    """Return the share of each split's rows that each of its classifiers predicts correctly, `(splits, P)`."""
    shares = []
    for split, index in enumerate(rows):
        _, logits = _predict(torch.from_numpy(features[index])[None], [part[split : split + 1] for part in weights])
        right = logits[0].argmax(1) == torch.from_numpy(labels[index])  # (P, m)
        shares.append(right.double().mean(1))
    return torch.stack(shares).numpy()


class _Optimizer:
    """torch's Adam or RMSprop on stacked classifiers, each with its penalty. A split without rows is not updated.

    A step overwrites the gradients. New memory for each result would take a third of the time of a hidden layer.
    """

    def __init__(self, name: str, weights: list[torch.Tensor], penalties: torch.Tensor):
        self.name, self.weights, self.penalties = name, weights, penalties[:, :, None, None]
        self.first = [torch.zeros_like(part) for part in weights]
        self.second = [torch.zeros_like(part) for part in weights]
        self.steps = torch.zeros(len(penalties), 1, 1, 1)

    def keep(self, splits: torch.Tensor) -> list[torch.Tensor]:
        """Keep the state of these splits only; return their weights."""
        self.penalties, self.steps = self.penalties[splits], self.steps[splits]
        self.first, self.second = [part[splits] for part in self.first], [part[splits] for part in self.second]
        self.weights = [part[splits] for part in self.weights]
        return self.weights

    def step(self, gradients: list[torch.Tensor], active: torch.Tensor) -> None:
        active = active.float()[:, None, None, None]
        self.steps += active
        for part, gradient, first, second in zip(self.weights, gradients, self.first, self.second, strict=True):
            gradient.addcmul_(self.penalties, part)
            if self.name == "rmsprop":
                second.lerp_(gradient.square(), 0.01 * active)
                part -= gradient.div_(second.sqrt().add_(1e-8)).mul_(1e-2 * active)
                continue
            first.lerp_(gradient, 0.1 * active)
            second.lerp_(gradient.square_(), 0.001 * active)
            scale = torch.div(second, 1 - 0.999**self.steps, out=gradient).sqrt_().add_(1e-8)
            part -= torch.div(first, scale, out=gradient).mul_(1e-3 * active / (1 - 0.9**self.steps))
