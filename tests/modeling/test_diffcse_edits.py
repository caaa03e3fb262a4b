"""DiffCSE's edits: replaced, inserted and deleted tokens, and their labels."""

import numpy as np
import pytest
import torch

from csezoo.modeling.methods.diffcse.editing import delete_tokens, insert_masks
from tests.methods.diffcse import MASK, diffcse, sentences, writing
from tests.tiny import one_view


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_generator_replaces_every_token_but_the_first_and_padding(kind):
    ids, mask = one_view(sentences(kind)).values()
    guesses = torch.full_like(ids, 50)
    guesses[0, 2] = 11  # the original
    model, _ = writing(diffcse(kind), guesses)
    edited, edited_mask, labels = model.edit("replace", ids, mask)
    cls = int(ids[0, 0])
    assert edited.tolist() == [[cls, 50, 11, 50, 50, 50], [cls, 50, 50, 50, 0, 0]]
    assert labels.tolist() == [[0, 1, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0]]
    assert torch.equal(edited_mask, mask)


def test_a_templates_mask_token_stays():
    ids, mask = one_view(sentences()).values()
    ids[0, 3] = MASK
    model, read = writing(diffcse(rtd_mask_ratio=1.0), torch.full_like(ids, 50))
    edited, _, labels = model.edit("replace", ids, mask)
    assert (edited[0, 3], labels[0, 3]) == (MASK, 0)
    assert torch.equal(model.maskable(ids, mask)[0], torch.tensor([False, True, True, False, True, False]))


def test_generator_positions_masked_replaces_only_masked_tokens():
    torch.manual_seed(0)
    ids = torch.randint(10, 40, (200, 30))
    model, read = writing(diffcse(generator_positions="masked"), torch.full_like(ids, 50))
    edited, _, labels = model.edit("replace", ids, torch.ones_like(ids))
    assert labels[:, 1:].double().mean().item() == pytest.approx(0.3, abs=0.02)
    assert torch.equal(edited == 50, labels.bool()), "what was masked, and what was chosen and left as it was"
    assert torch.equal(edited[labels == 0], ids[labels == 0])
    changed = (read[0] != ids)[:, 1:]
    assert (changed <= labels[:, 1:].bool()).all(), "the generator reads the other tokens as they are"


def test_argmax_is_the_best_guess_and_a_sample_follows_the_distribution():
    ids = torch.full((1, 4000), 20)
    for sampling, share in (("argmax", 1.0), ("sample", 0.75)):
        model = diffcse(generator_sampling=sampling)
        logits = torch.full((1, 4000, 300), -1e9, dtype=torch.float64)
        logits[..., 7], logits[..., 8] = np.log(3), 0
        model.generator.forward = lambda logits=logits, **_: type("Output", (), {"logits": logits})
        torch.manual_seed(0)
        guesses = model.generate(ids, torch.ones_like(ids))
        assert set(guesses.unique().tolist()) <= {7, 8}
        assert (guesses == 7).double().mean().item() == pytest.approx(share, abs=0.03)


def test_generator_dropout_follows_the_training_mode_unless_it_is_off():
    for on in (True, False):
        model = diffcse(generator_dropout=on)
        assert model.generator.training == on, "as built"
        model.eval()
        assert not model.generator.training
        assert model.train() is model
        assert model.discriminator.training and model.generator.training == on


def test_inserted_masks_are_filled_and_labelled_and_nothing_else_changes():
    ids, mask = one_view(sentences()).values()
    before = torch.tensor([[0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0]]).bool()
    longer, longer_mask, labels = insert_masks(ids, mask, before, MASK)
    assert longer.tolist() == [[2, MASK, 10, 11, MASK, 12, 13, 3], [2, 20, MASK, 21, 3, 0, 0, 0]]
    assert longer_mask.tolist() == [[1] * 8, [1] * 5 + [0] * 3]
    assert labels.tolist() == [[0, 1, 0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0]]
    model = diffcse(edit="insert", rtd_mask_ratio=1.0)
    edited, edited_mask, labels = model.edit("insert", ids, mask)
    assert edited[~labels.bool() & edited_mask.bool()].tolist() == [2, 10, 11, 12, 13, 3, 2, 20, 21, 3]
    assert edited_mask.sum(1).tolist() == [10, 6], "one before each token that is not special"
    assert labels.sum(1).tolist() == [4, 2]


def test_insertions_stay_within_the_positions_of_the_backbone():
    model = diffcse("roberta", edit="insert", rtd_mask_ratio=1.0)
    ids = torch.full((2, 1, 60), 20).repeat(1, 2, 1)
    model(input_ids=ids, attention_mask=torch.ones_like(ids)).loss.backward()


def test_deletion_keeps_the_order_of_a_long_sentence():
    ids = torch.arange(1, 201)[None]
    kept, _, _ = delete_tokens(ids, torch.ones_like(ids), ids % 3 == 0)
    assert kept[0, :134].tolist() == [number for number in range(1, 201) if number % 3]


def test_the_token_after_a_deletion_is_labelled():
    ids, mask = one_view(sentences()).values()
    deleted = torch.tensor([[0, 1, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]]).bool()
    shorter, shorter_mask, labels = delete_tokens(ids, mask, deleted)
    assert shorter.tolist() == [[2, 12, 13, 3, 0, 0], [2, 20, 3, 0, 0, 0]]
    assert shorter_mask.tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]
    assert labels.tolist() == [[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]
    model = diffcse(edit="delete")
    assert "generator" not in dict(model.named_children()), "deleting asks nobody"
    model.config.rtd_mask_ratio = 1.0
    assert model.edit("delete", ids, mask)[0].tolist() == [[2, 3, 0, 0, 0, 0]] * 2
