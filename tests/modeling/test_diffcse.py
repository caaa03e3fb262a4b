"""DiffCSE: the discriminator's loss, edits and labels, conditioning, and its variants."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoModelForPreTraining, DistilBertConfig
from transformers.masking_utils import create_bidirectional_mask

from csezoo.modeling.methods.diffcse.model import corrective_log_probabilities
from csezoo.modeling.objectives import replaced_token_detection
from tests.formulas import linear, numpy_info_nce
from tests.methods.diffcse import DISTILLED, diffcse, sentences, writing
from tests.tiny import batch, one_view


def numpy_cross_entropy(logits, labels):
    """The loss per token from the equation: `(B, T, classes), (B, T) -> (B, T)`."""
    losses = np.zeros(labels.shape)
    for place in np.ndindex(*labels.shape):
        scores = logits[place]
        losses[place] = -np.log(np.exp(scores[labels[place]]) / np.exp(scores).sum())
    return losses


def reduced(losses, mask, reduction):
    total = (losses * mask).sum()
    return {"mean": losses.sum() / losses.size, "nonpad_mean": total / mask.sum(), "sum": total}[reduction]


def split_path(discriminator, input_ids, attention_mask, vectors):
    """Token vectors of a discriminator, by calling its layers on embeddings that start with the vectors."""
    embedded = discriminator.embeddings(input_ids=input_ids)
    embedded = torch.cat([vectors[:, None], embedded[:, 1:]], dim=1)
    mask = create_bidirectional_mask(
        config=discriminator.config, inputs_embeds=embedded, attention_mask=attention_mask
    )
    return discriminator.encoder(embedded, attention_mask=mask).last_hidden_state


@pytest.mark.parametrize("reduction", ["mean", "nonpad_mean", "sum"])
def test_replaced_token_detection_equals_the_equation(reduction):
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(3, 5, 2)), random.integers(2, size=(3, 5))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
    losses = numpy_cross_entropy(logits, labels)
    expected = reduced(losses, mask, reduction)
    arguments = (torch.from_numpy(values) for values in (logits, labels, mask))
    assert replaced_token_detection(*arguments, reduction=reduction).item() == pytest.approx(expected, abs=1e-12)


def test_replaced_token_detection_refuses_unknown_reductions_and_computes_in_float32():
    logits, ones = torch.zeros(1, 2, 2), torch.ones(1, 2)
    with pytest.raises(ValueError, match="'median' must be one of mean, nonpad_mean, sum"):
        replaced_token_detection(logits, ones, ones, reduction="median")
    assert replaced_token_detection(logits.bfloat16(), ones, ones).dtype == torch.float32


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("condition_on", ["projection", "pooled"])
@pytest.mark.parametrize("reduction", ["mean", "nonpad_mean", "sum"])
def test_the_loss_is_the_contrastive_loss_plus_detection_of_known_edits(kind, condition_on, reduction):
    settings = {"condition_on": condition_on, "rtd_reduction": reduction, "rtd_weight": 0.3, "projection": "tanh"}
    model = diffcse(kind, **settings).eval()
    rows = sentences(kind)
    cls = int(rows["input_ids"][0, 0, 0])
    # What the generator guesses for the two views of the first sentence, then of the second one.
    guesses = torch.tensor([[99, 10, 30, 12, 13, 98], [99, 10, 11, 12, 31, 3], [99] * 6, [99, 20, 33, 3, 97, 97]])
    edited = np.array([[cls, 10, 30, 12, 13, 98], [cls, 10, 11, 12, 31, 3], [cls] + 3 * [99] + [0, 0]])
    edited = np.vstack([edited, [[cls, 20, 33, 3, 0, 0]]])
    flat_ids, flat_mask = (rows[key].flatten(0, 1) for key in ("input_ids", "attention_mask"))
    labels = ((edited != flat_ids.numpy()) & (flat_mask.numpy() == 1)).astype(int)
    pooled = model.model.backbone(flat_ids, attention_mask=flat_mask).last_hidden_state[:, 0]
    z = np.tanh(linear(model.projection.dense, pooled))
    condition = torch.from_numpy(z) if condition_on == "projection" else pooled
    hidden = split_path(model.discriminator, torch.from_numpy(edited), flat_mask, condition)
    losses = numpy_cross_entropy(linear(model.discriminator_head, hidden), labels)
    detection = reduced(losses, flat_mask.numpy(), reduction)
    contrast = numpy_info_nce(z[0::2], z[1::2])
    output = writing(model, guesses)[0](**rows)
    assert output.losses["rtd"].item() == pytest.approx(detection, abs=1e-9)
    assert output.loss.item() == pytest.approx(contrast + 0.3 * detection, abs=1e-9)


def test_every_edit_has_two_scores_of_its_own_and_the_mean_of_their_losses_counts():
    model, rows = diffcse(edit="all", condition_on="pooled").eval(), sentences()
    ids, mask = (rows[key].flatten(0, 1) for key in ("input_ids", "attention_mask"))
    vectors = model.pool_rows(**rows).flatten(0, 1)
    torch.manual_seed(5)
    total = model(**rows).losses["rtd"]
    torch.manual_seed(5)
    losses = []
    for number, edit in enumerate(("replace", "insert", "delete")):
        edited, edited_mask, labels = model.edit(edit, ids, mask)
        scores = model.discriminator_head(model.discriminate(edited, edited_mask, vectors)).detach().numpy()
        losses.append(numpy_cross_entropy(scores[..., 2 * number : 2 * number + 2], labels.numpy()).mean())
    assert scores.shape[-1] == 6
    assert total.item() == pytest.approx(np.mean(losses), abs=1e-9)


def test_conditioning_equals_values_and_gradients_computed_separately():
    model = diffcse().eval()
    ids, mask = one_view(sentences()).values()
    results = []
    for path in (model.discriminate, lambda *rows: split_path(model.discriminator, *rows)):
        torch.manual_seed(3)
        vectors = torch.randn(2, 32, dtype=torch.float64, requires_grad=True)
        hidden = path(ids, mask, vectors)
        results.append((hidden, *torch.autograd.grad(hidden.square().sum(), vectors)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    assert not model.discriminator.embeddings._forward_hooks, "nothing stays behind"


def test_each_view_conditions_the_edit_of_that_view():
    model, rows, read = diffcse(), sentences(), []
    original = model.discriminate
    model.discriminate = lambda ids, mask, vectors: read.append(vectors) or original(ids, mask, vectors)
    output = model(**rows)
    torch.testing.assert_close(read[0], output.embeddings.flatten(0, 1))


@pytest.mark.parametrize("contrastive_weight", [0.0, 1.0])
def test_gradients_reach_the_encoder_but_never_the_generator(contrastive_weight):
    model = diffcse(contrastive_weight=contrastive_weight)
    before = copy.deepcopy(model.generator.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    model(**batch()).loss.backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("generator."), name
    assert model.model.backbone.encoder.layer[0].attention.self.value.weight.grad.abs().sum() > 0
    for name, tensor in model.generator.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_loaded_generator_is_still_frozen_and_a_distilled_one_may_be_smaller(tmp_path):
    model = diffcse(generator_config=DISTILLED)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForPreTraining.from_pretrained(tmp_path)
    assert type(loaded.config.generator_config) is DistilBertConfig
    assert not any(parameter.requires_grad for parameter in loaded.generator.parameters())
    assert all(p.requires_grad for n, p in loaded.named_parameters() if not n.startswith("generator."))


def test_the_discriminators_head_alone_has_torchs_initialisation():
    # Uniform on ±1/sqrt(H), standard deviation 0.102 for H = 32; the initialiser of BERT has 0.02.
    model = diffcse(edit="all")
    head = model.discriminator_head
    assert 0.07 < head.weight.std().item() < 0.13
    assert 0.015 < model.projection.expand.weight.std().item() < 0.025
    assert head.weight.abs().max().item() <= 32**-0.5 and head.bias.abs().max() > 0


def test_encoder_and_discriminator_are_trained_separately():
    model = diffcse()
    own, others = ({p.data_ptr() for p in part.parameters()} for part in (model.model.backbone, model.discriminator))
    assert not own & others


def test_the_next_sentence_is_only_read_by_the_discriminator():
    rows = sentences(views=3)
    rows["input_ids"][:, 2] += 30
    read = {}
    for which in ("same", "next", "both"):
        model = diffcse(predicted_sentence=which, projection="tanh", rtd_mask_ratio=0.0)
        assert model.config.encoded_views == (None if which == "same" else 2)
        original, seen = model.discriminate, []
        model.replace = lambda ids, mask: ids
        model.discriminate = lambda ids, mask, vectors, o=original, s=seen: (
            s.append((ids, vectors)) or o(ids, mask, vectors)
        )
        views = {key: value[:, :2] for key, value in rows.items()} if which == "same" else rows
        output = model(**views)
        assert output.embeddings.shape == (2, 2, 32)
        torch.testing.assert_close(seen[0][1][:2], output.embeddings[0])
        read[which] = seen[0][0].view(2, -1, 6)
        assert seen[0][1].shape[0] == seen[0][0].shape[0]
    same, following = rows["input_ids"][:, :1], rows["input_ids"][:, 2:]
    assert torch.equal(read["same"], same.repeat(1, 2, 1))
    assert torch.equal(read["next"], following.repeat(1, 2, 1))
    assert torch.equal(read["both"], torch.cat([same, same, following, following], dim=1))


def test_conditional_masked_lm_is_the_cross_entropy_of_the_masked_tokens():
    model = diffcse(prediction="masked_lm", projection="tanh").eval()
    assert "generator" not in dict(model.named_children())
    rows = batch()
    ids, mask = (rows[key].flatten(0, 1) for key in ("input_ids", "attention_mask"))
    torch.manual_seed(5)
    output = model(**rows)
    torch.manual_seed(5)
    masked, labels = model.mask(ids, mask)
    hidden = split_path(model.discriminator, masked, mask, output.embeddings.flatten(0, 1))
    logits = model.discriminator_lm_head(hidden, model.discriminator.embeddings.word_embeddings.weight)
    chosen = labels.numpy() != -100
    losses = numpy_cross_entropy(logits.detach().numpy(), np.where(chosen, labels.numpy(), 0))
    assert output.losses["masked_lm"].item() == pytest.approx(losses[chosen].mean(), abs=1e-9)


def test_corrective_lm_keeps_or_predicts_every_token():
    model = diffcse(prediction="corrective_lm", projection="tanh").eval()
    rows = sentences()
    ids, mask = (rows[key].flatten(0, 1) for key in ("input_ids", "attention_mask"))
    guesses = ids.clone()
    guesses[0, 2] = 50
    output = writing(model, guesses)[0](**rows)
    edited = model.replace(ids, mask)
    hidden = split_path(model.discriminator, edited, mask, output.embeddings.flatten(0, 1))
    logits = model.discriminator_lm_head(hidden, model.discriminator.embeddings.word_embeddings.weight)
    kept = model.discriminator_head(hidden).softmax(-1)[..., 0].detach().numpy()
    predicted = logits.softmax(-1).detach().numpy()
    losses = []
    for i, t in np.ndindex(*ids.shape):
        if t > 0 and mask[i, t]:
            own = kept[i, t] * (edited[i, t] == ids[i, t]).item()
            losses.append(-np.log((1 - kept[i, t]) * predicted[i, t, ids[i, t]] + own))
    assert output.losses["corrective_lm"].item() == pytest.approx(np.mean(losses), abs=1e-9)
    mixed = corrective_log_probabilities(logits, model.discriminator_head(hidden), edited)
    torch.testing.assert_close(mixed.exp().sum(-1), torch.ones_like(mixed[..., 0]))


@pytest.mark.parametrize("edited_view", ["positive", "negative"])
@pytest.mark.parametrize("edit", ["replace", "insert", "delete"])
def test_an_edited_view_is_part_of_the_contrastive_loss(edited_view, edit):
    model = diffcse(edited_view=edited_view, edit=edit, rtd_weight=0.0, projection="tanh").eval()
    assert "discriminator" not in dict(model.named_children())
    calls = []
    model.model.backbone.register_forward_hook(lambda *_: calls.append(1))
    output = model(**batch())
    assert len(calls) == 1 and output.embeddings.shape == (4, 3, 32)
    anchor, positive, edited = output.embeddings.detach().numpy().swapaxes(0, 1)
    if edited_view == "negative":
        expected = numpy_info_nce(anchor, positive, edited)
    else:
        expected = (numpy_info_nce(anchor, positive) + numpy_info_nce(anchor, edited)) / 2
    assert output.loss.item() == pytest.approx(expected, abs=1e-9)


def test_without_an_attention_mask_the_complete_row_is_edited():
    model = diffcse(edited_view="negative", rtd_weight=0.0).eval()
    ids = batch()["input_ids"]
    losses = []
    for masks in ({}, {"attention_mask": torch.ones_like(ids)}):
        torch.manual_seed(0)
        losses.append(model(ids, **masks).loss)
    torch.testing.assert_close(*losses)


def test_the_discriminator_does_not_read_the_edited_view():
    model, read = diffcse(edited_view="negative"), []
    original = model.discriminate
    model.discriminate = lambda ids, mask, vectors: read.append(vectors) or original(ids, mask, vectors)
    output = model(**batch())
    assert list(output.losses) == ["contrastive", "rtd"]
    torch.testing.assert_close(read[0], output.embeddings[:, :2].flatten(0, 1))
