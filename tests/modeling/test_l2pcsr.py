"""L2P-CSR: masks and ascent against numpy, and the inner steps against algorithm 1."""

import copy

import numpy as np
import pytest
import torch

from csezoo.modeling.methods.l2pcsr.model import ascend, weakening_mask
from tests.methods.l2pcsr import RELEASED, l2pcsr
from tests.tiny import batch, gradients

# --- masks and ascent


def test_masks_equal_the_papers_equations():
    token = np.array([[0.0, 0.05, 0.9], [0.049, 0.3, 0.01]])
    feature = np.array([[0.04, 1.0, 0.05, 0.0], [0.5, 0.02, 0.7, 0.1]])
    expected = np.zeros((2, 3, 4))
    for b, i, j in np.ndindex(expected.shape):
        expected[b, i, j] = (float(token[b, i] >= 0.05) + float(feature[b, j] >= 0.05)) / 2  # eq. 1 and 2
    mask = weakening_mask(torch.tensor(token), torch.tensor(feature), 0.05)
    assert mask.dtype == torch.float64 and set(mask.unique().tolist()) == {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(mask.numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_masks_keep_the_type_and_a_threshold_of_zero_weakens_nothing(dtype):
    mask = weakening_mask(torch.zeros(2, 3, dtype=dtype), torch.rand(2, 4, dtype=dtype), 0.0)
    assert mask.dtype == dtype and (mask == 1).all()


def numpy_ascend(probability, gradient, step_size, mode):
    """Eq. 5, row by row."""
    moved = probability.copy()
    for index in np.ndindex(probability.shape[:-1]):
        if mode == "l2" and np.any(gradient[index]):
            moved[index] += step_size * gradient[index] / np.sqrt((gradient[index] ** 2).sum())
        elif mode == "sign":
            moved[index] = np.where(gradient[index] == 0, 1, moved[index] + step_size * np.sign(gradient[index]))
    return np.clip(moved, 0, 1)


@pytest.mark.parametrize("mode", ["l2", "sign"])
@pytest.mark.parametrize("scale", [1.0, 1e-200])
def test_ascent_equals_the_paper_and_the_release(mode, scale):
    random = np.random.default_rng(0)
    probability, gradient = random.random((3, 4, 5)), scale * random.standard_normal((3, 4, 5))
    gradient[0, 1], gradient[2, 2, 3] = 0, 0
    moved = ascend(torch.tensor(probability), torch.tensor(gradient), step_size=0.4, mode=mode)
    expected = numpy_ascend(probability, gradient / scale, 0.4, mode)
    np.testing.assert_allclose(moved.numpy(), expected, atol=1e-12)
    assert 0 in expected and 1 in expected, "some are clipped"


def test_an_unknown_mode_of_ascent_is_refused():
    with pytest.raises(ValueError, match="mode: 'linf' must be one of l2, sign"):
        ascend(torch.zeros(2), torch.ones(2), step_size=1.0, mode="linf")


# --- the inner steps, by hand: no hooks, every multiplication written out


def loss_by_hand(model, rows, weights, noise=0.0):
    """The loss of views whose layer outputs are multiplied by `weights`, one (rows, tokens, width) each."""
    ids, mask = rows["input_ids"].flatten(0, 1), rows["attention_mask"].flatten(0, 1)
    if model.config.attend_padding:
        mask = torch.ones_like(mask)
    unattended = torch.zeros(len(mask), 1, 1, mask.shape[1]).double().masked_fill(mask[:, None, None] == 0, -1e300)
    backbone = model.model.backbone
    hidden = backbone.embeddings(input_ids=ids) + noise
    for number, layer in enumerate(backbone.encoder.layer):
        if number < len(weights):
            hidden = hidden * weights[number]
        hidden = layer(hidden, unattended)
    dense = model.projection.dense
    z = torch.tanh(hidden[:, 0] @ dense.weight.T + dense.bias)
    first, second = (z / z.norm(dim=1, keepdim=True)).unflatten(0, (-1, 2)).unbind(1)
    logits = first @ second.T / model.config.temperature
    return -(logits.diagonal() - logits.logsumexp(1)).mean()


def weights_of(token, feature):
    return [(t[:, :, None] + f[:, None, :]) / 2 for t, f in zip(token, feature, strict=True)]


def learn_by_hand(model, rows, initial):
    """Algorithm 1, lines 6 to 13; masks that the configuration does not have are ones."""
    config = model.config
    layers, (sentences, views, tokens) = config.weakened_layers, rows["input_ids"].shape
    learned = {name: value.numpy().copy() for name, value in initial.items()}
    for _ in range(config.inner_steps):
        masks = {name: torch.tensor(value) for name, value in learned.items()}
        if config.weakening == "binary":
            masks = {
                name: torch.tensor(np.where(value >= config.threshold, 1.0, 0.0)) for name, value in learned.items()
            }
        token = masks.get("token", torch.ones(layers, sentences * views, tokens).double())
        feature = masks.get("feature", torch.ones(layers, 1, 32).double())
        leaves = {"token": token.requires_grad_(), "feature": feature.requires_grad_()}
        loss_by_hand(model, rows, weights_of(token, feature)).backward()
        for name in learned:
            step_size = getattr(config, f"{name}_step_size")
            mode = config.token_update if name == "token" else "l2"
            learned[name] = numpy_ascend(learned[name], leaves[name].grad.numpy(), step_size, mode)
    return learned


VARIANTS = {
    "paper": {},
    "random": {"inner_steps": 0},
    "one-step": {"inner_steps": 1, "threshold": 0.4},
    "one-output": {"weakened_layers": 1},
    "released": RELEASED,
    "shared": {"feature_mask_scope": "shared"},
    "no-feature-mask": {"feature_mask": False},
    "no-token-mask": {"token_mask": False},
    "continuous": {"weakening": "continuous"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_inner_steps_equal_algorithm_1(variant, kind):
    model, rows = l2pcsr(kind, **VARIANTS[variant]), batch()
    torch.manual_seed(3)
    initial = model.initial_probabilities(**rows)
    torch.manual_seed(3)
    learned = model.learn_weakening(**rows)
    expected = learn_by_hand(copy.deepcopy(model), rows, initial)
    assert learned.keys() == expected.keys()
    for name, probability in learned.items():
        np.testing.assert_allclose(probability.numpy(), expected[name], atol=1e-9, err_msg=name)
        changed = not np.allclose(expected[name], initial[name].numpy())
        assert changed == (model.config.inner_steps > 0), "the steps move it, or this test shows nothing"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_update_treats_the_learned_masks_as_constants(variant, kind):
    model, rows = l2pcsr(kind, **VARIANTS[variant]), batch()
    learned = model.learn_weakening(**rows)
    assert all(parameter.grad is None for parameter in model.parameters())
    masks = {name: m.detach() for name, m in model.masks(learned).items()}
    token = masks.get("token", torch.ones(model.config.weakened_layers, 8, 7).double())
    feature = masks.get("feature", torch.ones(model.config.weakened_layers, 1, 32).double())
    by_hand = copy.deepcopy(model)
    expected = loss_by_hand(by_hand, rows, weights_of(token, feature))
    expected.backward()
    model.learn_weakening = lambda *_: learned
    loss = model(**rows).loss
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=1e-12, rtol=0)
    for name, gradient in gradients(by_hand).items():
        torch.testing.assert_close(gradients(model)[name], gradient, atol=1e-10, rtol=1e-8, msg=name)


def test_mask_shapes_depend_on_the_feature_mask_scope():
    rows = batch(views=3)
    own = l2pcsr(weakened_layers=2).learn_weakening(**rows)
    assert (own["token"].shape, own["feature"].shape) == ((2, 12, 7), (2, 12, 32))
    shared = l2pcsr(weakened_layers=2, feature_mask_scope="shared").learn_weakening(**rows)
    assert (shared["token"].shape, shared["feature"].shape) == ((2, 12, 7), (2, 1, 32))
    assert (
        own["token"].min() >= 0 and own["token"].max() <= 1 and not torch.equal(own["token"][:, 0], own["token"][:, 1])
    )


def test_noise_stays_within_its_largest_norm():
    model, rows = l2pcsr(weakening="noise", noise_size=0.5, inner_steps=1), batch()
    torch.manual_seed(3)
    start = model.initial_probabilities(**rows)["noise"]
    torch.manual_seed(3)
    end = model.learn_weakening(**rows)["noise"]
    torch.testing.assert_close(start.flatten(1).norm(dim=1), torch.full((8,), 0.5).double())
    assert (start[0, 5:] == 0).all(), "no noise on padding"
    leaf = start.clone().requires_grad_()
    loss_by_hand(copy.deepcopy(model), rows, [], leaf).backward()
    for row in range(8):
        moved = start[row].numpy() + 0.5 * leaf.grad[row].numpy() / np.linalg.norm(leaf.grad[row].numpy())
        expected = moved * min(1, 0.5 / np.linalg.norm(moved))
        np.testing.assert_allclose(end[row].numpy(), expected, atol=1e-9)


def test_small_gradients_are_not_lost_in_half_precision():
    # At this temperature many gradients at the masks are below the smallest number of float16.
    model, rows = l2pcsr(temperature=1000.0, inner_steps=1).float(), batch()
    moves = []
    for half in (False, True):
        torch.manual_seed(3)
        initial = model.initial_probabilities(**rows)["token"]
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.float16, enabled=half):
            moves.append((model.learn_weakening(**rows)["token"] - initial).flatten())
    assert torch.cosine_similarity(*moves, dim=0) > 0.999


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weakening": "continuous", "token_step_size": 0.05, "feature_step_size": 0.05},
        {"weakening": "noise", "noise_size": 0.1},
    ],
)
def test_learning_the_masks_increases_the_loss(changes):
    learning, random = l2pcsr(**changes), l2pcsr(**changes, inner_steps=0)
    raised = []
    for seed in range(8):
        losses = []
        for model in (learning, random):
            torch.manual_seed(seed)  # the same start
            losses.append(model(**batch()).loss.item())
        raised.append(losses[0] - losses[1])
    assert np.mean(raised) > 0
