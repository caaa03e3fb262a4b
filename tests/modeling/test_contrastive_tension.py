"""Contrastive Tension: its loss against an independent float64 implementation, and its two encoders."""

import numpy as np
import pytest
import torch

from csezoo.modeling import ContrastiveTensionConfig
from csezoo.modeling.methods.contrastive_tension.model import other_pairs
from tests.tiny import batch, training_model


def test_the_loss_is_the_cross_entropy_of_each_sentence_with_itself_and_those_after_it():
    model = training_model("contrastive_tension", negatives=2, negative_pairs="own")
    views = torch.randn(4, 2, 32, dtype=torch.float64)
    scores = (views[:, 0] @ views[:, 1].T).numpy()
    losses = []
    for i in range(4):
        losses.append(np.log1p(np.exp(-scores[i, i])))
        losses += [np.log1p(np.exp(scores[i, (i + distance) % 4])) for distance in (1, 2)]
    assert model.contrastive_loss(views).item() == pytest.approx(np.mean(losses), rel=1e-9)
    twins = torch.zeros(4, 4, dtype=torch.bool)
    twins[0, 1] = twins[1, 0] = True
    del losses[1]  # sentence 0 with sentence 1, which is the same; 1 is not compared with 0
    assert model.contrastive_loss(views, twins).item() == pytest.approx(np.mean(losses), rel=1e-9)
    alone = model.contrastive_loss(views[:1])
    assert alone.item() == pytest.approx(np.log1p(np.exp(-scores[0, 0])), rel=1e-9), "there is no other sentence"


def test_other_pairs_are_of_two_sentences_that_are_in_no_other_pair():
    """Of ten sentences and two negatives for each positive, two pairs are of one sentence and four of two."""
    model, views = training_model("contrastive_tension", negatives=2), torch.randn(10, 2, 32, dtype=torch.float64)
    scores = (views[:, 0] @ views[:, 1].T).numpy()
    losses = [np.log1p(np.exp(-scores[i, i])) for i in (0, 1)]
    losses += [np.log1p(np.exp(scores[i, j])) for i, j in ((2, 6), (3, 7), (4, 8), (5, 9))]
    assert model.contrastive_loss(views).item() == pytest.approx(np.mean(losses), rel=1e-9)
    twins = torch.zeros(10, 10, dtype=torch.bool)
    twins[3, 7] = twins[7, 3] = True
    assert model.contrastive_loss(views, twins).item() == pytest.approx(np.mean(losses[:3] + losses[4:]), rel=1e-9)


@pytest.mark.parametrize("sentences", range(1, 35))
def test_every_batch_has_a_positive_pair_and_no_sentence_twice(sentences):
    left, right = other_pairs(sentences, 7)
    positive = int((left == right).sum())
    others = [*left[positive:].tolist(), *right[positive:].tolist()]
    assert positive == max(1, round(sentences / 15)) and len({*others}) == len(others) <= sentences - positive
    assert sentences - positive - len(others) < 2 and min(others, default=positive) == positive


@pytest.mark.parametrize(("kind", "least"), [("others", 3), ("own", 2)])
def test_a_batch_without_a_negative_pair_is_refused(kind, least):
    ContrastiveTensionConfig(negative_pairs=kind, batch_size=least)
    with pytest.raises(ValueError, match=f"batch_size: {least - 1} .* give {least} or more"):
        ContrastiveTensionConfig(negative_pairs=kind, batch_size=least - 1)


def test_the_encoders_start_as_one_and_part():
    # with all others, and no dropout, both would learn the same
    model = training_model("contrastive_tension", negatives=1, negative_pairs="own")
    model.start_from(model.model.backbone)
    rows = {name: value[:, :1].expand(-1, 2, -1) for name, value in batch().items()}  # the same sentence twice
    output = model(**rows)
    anchors, positives = output.embeddings.unbind(1)
    torch.testing.assert_close(anchors, positives)
    output.loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    second = dict(model.model.backbone.named_parameters())
    assert any(not torch.allclose(weight, second[name]) for name, weight in model.first.named_parameters())
    anchors, positives = model.eval()(**rows).embeddings.unbind(1)
    served = model.model(**{name: value[:, 0] for name, value in rows.items()}).pooler_output
    torch.testing.assert_close(served, positives)
    assert not torch.allclose(served, anchors), "the first encoder reads the anchors"
