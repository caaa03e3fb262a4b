"""With `mask_duplicates`, a sentence that is in a batch twice is not its own negative."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from csezoo.modeling import METHODS
from csezoo.modeling.methods.contrastive_tension.model import own_pairs, pair_loss
from csezoo.modeling.objectives import duplicate_rows, info_nce, prefix_contrastive, self_guided
from tests.formulas import naive_softmax_loss, unit
from tests.methods import CONFIGS
from tests.tiny import batch, configure

# Rows 0, 2 and 4 of five are one sentence, 1 and 3 are others.
SAME = torch.tensor([[i != j and i % 2 == 0 and j % 2 == 0 for j in range(5)] for i in range(5)])
TEMPERATURE = 0.2


@pytest.fixture
def vectors():
    return torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5, 6))).requires_grad_()


def numpy_loss(anchors, own, candidates):
    """The mean loss of each anchor against its candidates: `(vector, whether it is in the denominator of i)`."""
    losses = []
    for i, anchor in enumerate(anchors):
        terms = [anchor @ vector / TEMPERATURE for vector, stays in candidates if stays(i)]
        losses.append(naive_softmax_loss(anchor @ own[i] / TEMPERATURE, terms))
    return np.mean(losses)


def unless_same(vectors):
    return [(vector, lambda i, j=j: not SAME[i, j]) for j, vector in enumerate(vectors)]


def always(vectors):
    return [(vector, lambda i: True) for vector in vectors]


def test_positives_of_duplicates_leave_the_denominator_and_hard_negatives_stay(vectors):
    a, p, n = (unit(v) for v in vectors.detach().numpy())
    loss = info_nce(*vectors[:2], temperature=TEMPERATURE, duplicates=SAME)
    assert loss.item() == pytest.approx(numpy_loss(a, p, unless_same(p)), abs=1e-12)
    loss = info_nce(*vectors, temperature=TEMPERATURE, duplicates=SAME)
    assert loss.item() == pytest.approx(numpy_loss(a, p, unless_same(p) + always(n)), abs=1e-12)
    assert torch.autograd.gradcheck(lambda v: info_nce(*v, temperature=0.5, duplicates=SAME), vectors)


@pytest.mark.parametrize("denominator", ["batch", "own", "all"])
def test_duplicates_of_prefixed_copies_leave_the_denominator(vectors, denominator):
    a, p, n = (unit(v) for v in vectors.detach().numpy())
    candidates = unless_same(p) + (always(n) if denominator != "own" else [])
    if denominator == "own":
        candidates += [(vector, lambda i, j=j: i == j) for j, vector in enumerate(n)]
    if denominator == "all":
        candidates += [(vector, lambda i, j=j: i != j and not SAME[i, j]) for j, vector in enumerate(a)]
    loss = prefix_contrastive(*vectors, temperature=TEMPERATURE, denominator=denominator, duplicates=SAME)
    assert loss.item() == pytest.approx(numpy_loss(a, p, candidates), abs=1e-12)


@pytest.mark.parametrize("variant", ["base", "opt1", "opt2", "opt3"])
def test_duplicates_of_a_twins_views_leave_the_denominator(vectors, variant):
    c, h, g = (unit(v) for v in vectors.detach().numpy())
    loss = self_guided(vectors[0], vectors[1][:, None], temperature=TEMPERATURE, variant=variant, duplicates=SAME)
    other_embeddings = [(vector, lambda i, j=j: i != j and not SAME[i, j]) for j, vector in enumerate(c)]
    if variant == "base":
        other_views = [(vector, lambda i, j=j: i != j and not SAME[i, j]) for j, vector in enumerate(h)]
        of_embeddings = numpy_loss(c, h, other_embeddings + unless_same(h))
        expected = (of_embeddings + numpy_loss(h, c, other_views + unless_same(c))) / 2
    else:
        expected = numpy_loss(c, h, unless_same(h) + (other_embeddings if variant == "opt1" else []))
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    if variant == "opt3":
        loss = self_guided(vectors[0], vectors[1:].transpose(0, 1), temperature=TEMPERATURE, duplicates=SAME)
        losses = []
        for i in range(5):
            others = [c[i] @ view[j] / TEMPERATURE for j in range(5) if j != i and not SAME[i, j] for view in (h, g)]
            losses += [naive_softmax_loss(own, [own, *others]) for own in (c[i] @ v[i] / TEMPERATURE for v in (h, g))]
        assert loss.item() == pytest.approx(np.mean(losses), abs=1e-12)


def test_a_batch_of_one_sentence_has_no_negatives_and_a_finite_gradient():
    z = torch.randn(4, 6, requires_grad=True)
    everyone = ~torch.eye(4, dtype=torch.bool)
    info_nce(z, z + 1, temperature=0.05, duplicates=everyone).backward()
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_rows_are_duplicates_if_an_anchor_or_positive_is_equal():
    a, b, c, d = [1, 2, 0], [1, 2, 3], [4, 0, 0], [5, 6, 7]  # 0 pads: another length is another text
    rows = torch.tensor([[a, b, d], [c, a, d], [d, c, d], [[9, 9, 9], [8, 8, 8], a]])
    expected = [[False, True, False, False], [True, False, True, False], [False, True, False, False], [False] * 4]
    assert duplicate_rows(rows).tolist() == expected
    assert duplicate_rows(rows[:, :1]).tolist() == [[False] * 4] * 4
    assert duplicate_rows(rows[:0]).shape == (0, 0)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ("simcse-whitening", "simcse-flow")])
def test_every_method_has_the_option(name):
    def loss(rows, **changes):
        torch.manual_seed(0)
        config = configure(name, "bert", **changes)
        model = METHODS[config.model_type][2](config).train()
        torch.manual_seed(0)
        return model(**rows).losses["contrastive"].item()

    different = batch()
    repeated = {key: value[1:2].repeat(5, 1, 1) for key, value in different.items()}  # whichever pairs are drawn
    assert loss(different, mask_duplicates=True) == loss(different)
    assert loss(repeated, mask_duplicates=True) != loss(repeated)


def test_labelled_triplets_have_the_option():
    def loss(rows, **changes):
        torch.manual_seed(0)
        config = configure("simcse", "bert", nli_classes=2, nli_objective="contrastive", **changes)
        model = METHODS["simcse"][2](config).eval()
        return model(nli_input_ids=rows["input_ids"], nli_attention_mask=rows["attention_mask"]).loss.item()

    different = batch(views=3)
    twice = {key: torch.cat([value, value[1:2]]) for key, value in different.items()}
    assert loss(different, mask_duplicates=True) == loss(different)
    assert loss(twice, mask_duplicates=True) < loss(twice)


def test_contrastive_tension_leaves_pairs_of_duplicates_out():
    model = METHODS["contrastive_tension"][2](configure("contrastive_tension-own", "bert"))
    embeddings = torch.randn(5, 2, 8)
    duplicates = duplicate_rows(torch.tensor([1, 2, 3, 4, 3])[:, None, None])
    left, right = own_pairs(5, model.config.negatives)
    kept = [pair for pair in zip(left.tolist(), right.tolist(), strict=True) if set(pair) != {2, 4}]
    assert 0 < len(kept) < len(left)
    scores = torch.stack([embeddings[one, 0] @ embeddings[other, 1] for one, other in kept])
    same = torch.tensor([float(one == other) for one, other in kept])
    expected = F.binary_cross_entropy_with_logits(scores, same)
    torch.testing.assert_close(model.contrastive_loss(embeddings, duplicates), expected)
    every = (embeddings[left, 0] * embeddings[right, 1]).sum(1)
    torch.testing.assert_close(pair_loss(every, left == right, ~duplicates[left, right]), expected)


def test_rows_are_equal_only_if_every_token_is():
    rows = torch.randint(30_000, (300, 1, 9))
    rows[150:] = rows[:150]
    rows[150:200, 0, 4] += 1
    rows[200:250] = rows[200:250].flip(2)
    expected = (rows[:, None, 0] == rows[None, :, 0]).all(2).fill_diagonal_(False)
    assert torch.equal(duplicate_rows(rows), expected) and expected.sum() == 100
