"""ESimCSE of `examples/` by its formulas; `test_examples.py` runs the tests of every method over the examples."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tests.conftest import NO_DROPOUT, tiny_config
from tests.formulas import numpy_info_nce, unit
from tests.tiny import batch

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def esimcse(monkeypatch):
    """A function that makes its training model, tiny and without dropout, in float64."""
    name = "csezoo.modeling.methods.esimcse"  # where its file would be copied
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "esimcse.py", submodule_search_locations=[])
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)

    def make(**changes):
        torch.manual_seed(0)
        config = module.ESimCSEConfig(backbone_config=tiny_config("bert", **NO_DROPOUT), batch_size=4, **changes)
        return module.ESimCSEForContrastiveLearning(config).double().train()

    return make


@pytest.mark.parametrize(("pieces", "most"), [(1, 1), (2, 2), (6, 2), (10, 3), (30, 9)])
def test_esimcse_repeats_up_to_a_third_of_the_pieces_and_each_number_equally_often(esimcse, pieces, most):
    config = esimcse().config
    sentence = list(range(pieces))
    draw, added, repeated = Random(0), Counter(), Counter()
    for _ in range(3000):
        anchor, positive = config.edit_sentence([sentence, sentence], draw)
        assert anchor == sentence and sorted(set(positive)) == sentence
        assert positive == sorted(positive) and max(Counter(positive).values()) <= 2, "each beside itself, once"
        added[len(positive) - pieces] += 1
        repeated.update(piece for piece, count in Counter(positive).items() if count == 2)
    assert sorted(added) == list(range(most + 1)) and most <= config.most_added_pieces(pieces)
    assert max(added.values()) < 1.2 * min(added.values())
    assert max(repeated.values()) < 1.4 * min(repeated.values())


def test_esimcse_repeats_nothing_at_a_rate_of_0(esimcse):
    config = esimcse(repetition_rate=0.0).config
    assert config.edit_sentence([[1, 2, 3], [1, 2, 3]], Random(0)) == [[1, 2, 3], [1, 2, 3]]


def test_esimcses_loss_has_the_filled_places_of_the_queue_as_negatives_of_every_anchor(esimcse):
    model = esimcse()
    assert model.queue.shape == (10, 32), "2.5 times the batch"
    views = torch.randn(4, 2, 32, dtype=torch.float64)
    in_batch = numpy_info_nce(*views.numpy().transpose(1, 0, 2), temperature=0.05)
    assert model.contrastive_loss(views).item() == pytest.approx(in_batch, rel=1e-9), "an empty queue"
    model.queue[7:] = torch.randn(3, 32)
    anchors, positives, earlier = (unit(rows.numpy()) for rows in (*views.unbind(1), model.queue[7:]))
    logits = np.concatenate([anchors @ positives.T, anchors @ earlier.T], axis=1) / 0.05
    expected = np.mean(np.log(np.exp(logits).sum(1)) - np.diag(logits))
    assert model.contrastive_loss(views).item() == pytest.approx(expected, rel=1e-9)


def test_esimcses_batches_enter_the_queue_after_their_loss_and_the_oldest_leave(esimcse):
    model = esimcse()
    model.begin_stage("contrastive")
    rows = batch(sentences=4)
    first = model(**rows)
    expected = model.eval()(**rows).embeddings[:, 0]  # the momentum encoder is the encoder as yet
    model.train()
    torch.testing.assert_close(model.queue[-4:], expected, atol=1e-12, rtol=0)
    assert not model.queue[:6].any()
    again = model(**rows)
    assert again.loss > first.loss, "the sentences themselves are among the negatives now"
    other = {name: value.flip(0) for name, value in rows.items()}
    model(**other, rows=3)  # the last one does not count
    torch.testing.assert_close(
        model.queue, torch.cat([expected[1:], expected, expected.flip(0)[:3]]), atol=1e-12, rtol=0
    )


def test_esimcses_momentum_encoder_averages_the_weights_after_each_update_alone(esimcse):
    model = esimcse(momentum=0.75)
    model.begin_stage("contrastive")
    before = {name: weight.clone() for name, weight in model.model.backbone.named_parameters()}
    model(**batch()).loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    moved = dict(model.model.backbone.named_parameters())
    for name, average in model.momentum_encoder.named_parameters():
        assert torch.equal(average, before[name]) and not average.requires_grad
    with torch.no_grad():
        model.after_update()
    for name, average in model.momentum_encoder.named_parameters():
        torch.testing.assert_close(average, 0.75 * before[name] + 0.25 * moved[name], atol=1e-12, rtol=0)
    assert not all(torch.equal(moved[name], before[name]) for name in moved)
