"""The batched classifiers match the same protocol written as a plain loop over classifiers."""

import numpy as np
import pytest
import torch

from csezoo.training.evaluation.tasks.probing import (
    PENALTIES,
    Protocol,
    dev_then_test,
    fit,
    folds_then_test,
    stratified_folds,
)

RNG = np.random.default_rng(0)


def data(rows, classes, dimensions=6):
    """Overlapping classes, so that accuracies differ between folds and penalties."""
    labels = RNG.integers(classes, size=rows)
    features = RNG.normal(size=(rows, dimensions)) + 0.8 * RNG.normal(size=(classes, dimensions))[labels]
    return features.astype(np.float32), labels


def train_one(x, y, held_x, held_y, classes, penalty, protocol, random):
    """SentEval's loop: check every few epochs, keep the best weights, stop after `tenacity` checks without a gain."""
    torch.manual_seed(1111)
    model = torch.nn.Linear(x.shape[1], classes)
    if protocol.hidden:
        torch.manual_seed(1111)
        first = torch.nn.Linear(x.shape[1], protocol.hidden)
        model = torch.nn.Sequential(first, torch.nn.Sigmoid(), torch.nn.Linear(protocol.hidden, classes))
    kinds = {"adam": (torch.optim.Adam, 1e-3), "rmsprop": (torch.optim.RMSprop, 1e-2)}
    kind, rate = kinds[protocol.optimizer]
    optimizer = kind(model.parameters(), lr=rate, weight_decay=penalty)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    best, kept, not_better, epoch, stop = -1.0, None, 0, 0, False
    while not stop and epoch <= 200:
        for _ in range(protocol.epoch_size):
            order = random.permutation(len(x))
            for i in range(0, len(x), protocol.batch_size):
                rows = torch.from_numpy(order[i : i + protocol.batch_size])
                loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epoch += protocol.epoch_size
        accuracy = score(model, held_x, held_y)
        if accuracy > best:
            best, kept = accuracy, {name: value.clone() for name, value in model.state_dict().items()}
        else:
            stop = not_better >= protocol.tenacity
            not_better += 1
    model.load_state_dict(kept)
    return model, best


def score(model, x, y):
    return float((model(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


def held_out_twentieth(x, y, classes, penalty, protocol):
    random = np.random.RandomState(1111)
    order = random.permutation(len(x))
    cut = int(0.05 * len(x))
    held, rest = order[:cut], order[cut:]
    return train_one(x[rest], y[rest], x[held], y[held], classes, penalty, protocol, random)[0]


def mean_over_folds(x, y, classes, protocol):
    means = []
    for penalty in PENALTIES:
        scores = []
        for train, held in stratified_folds(y, protocol.folds):
            random = np.random.RandomState(1111)
            scores.append(train_one(x[train], y[train], x[held], y[held], classes, penalty, protocol, random)[1])
        means.append(round(100 * np.mean(scores), 2))
    return means


SMALL = [
    Protocol(folds=3, optimizer="adam", batch_size=16, tenacity=2, epoch_size=2),
    Protocol(folds=3, optimizer="rmsprop", batch_size=10, tenacity=1, epoch_size=1),
    Protocol(folds=3, optimizer="adam", batch_size=40, tenacity=0, epoch_size=10, hidden=5),
]


@pytest.mark.parametrize("protocol", SMALL[:2], ids=lambda protocol: f"{protocol.optimizer}-{protocol.hidden}")
def test_nested_folds_match_a_plain_loop(protocol):
    x, y = data(97, 2)
    dev, test = [], []
    for train, outside in stratified_folds(y, protocol.folds):
        means = mean_over_folds(x[train], y[train], 2, protocol)
        dev.append(max(means))
        model = held_out_twentieth(x[train], y[train], 2, PENALTIES[int(np.argmax(means))], protocol)
        test.append(100 * score(model, x[outside], y[outside]))
    expected = (np.mean(dev), np.mean(test))
    assert folds_then_test(x, y, stratified_folds(y, 3), protocol) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("protocol", SMALL, ids=lambda protocol: f"{protocol.optimizer}-{protocol.hidden}")
def test_folds_then_test_matches_a_plain_loop(protocol):
    x, y = data(120, 4)
    train, test = np.arange(83), np.arange(83, 120)
    means = mean_over_folds(x[train], y[train], 4, protocol)
    model = held_out_twentieth(x[train], y[train], 4, PENALTIES[int(np.argmax(means))], protocol)
    expected = (max(means), 100 * score(model, x[test], y[test]))
    assert folds_then_test(x, y, [(train, test)], protocol) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("protocol", SMALL, ids=lambda protocol: f"{protocol.optimizer}-{protocol.hidden}")
def test_dev_then_test_matches_a_plain_loop(protocol):
    x, y = data(120, 2)
    train, dev, test = np.split(np.arange(120), [70, 90])
    fitted = [
        train_one(x[train], y[train], x[dev], y[dev], 2, penalty, protocol, np.random.RandomState(1111))
        for penalty in PENALTIES
    ]
    model, best = max(fitted, key=lambda fit: fit[1])
    expected = (100 * best, 100 * score(model, x[test], y[test]))
    assert dev_then_test(x, y, train, dev, test, protocol) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("protocol", SMALL, ids=lambda protocol: f"{protocol.optimizer}-{protocol.hidden}")
def test_the_weights_are_those_of_a_plain_loop(protocol):
    x, y = data(120, 3)
    train, held = np.arange(90), np.arange(90, 120)
    model, _ = train_one(x[train], y[train], x[held], y[held], 3, 1e-3, protocol, np.random.RandomState(1111))
    weights, _ = fit(x, y, [(train, held)], np.array([[1e-3]]), protocol)
    for part, expected in zip(weights, model.parameters(), strict=True):  # (1, 1, classes, d) and (classes, d)
        torch.testing.assert_close(part[0, 0].reshape(expected.shape), expected.detach(), atol=1e-4, rtol=1e-3)
