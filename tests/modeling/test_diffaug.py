"""DiffAug: prefixes in attention, the serving model, stage 1, and its variants."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForPreTraining, DynamicCache

from csezoo.modeling.contrastive.natural_language_inference import nli_loss
from csezoo.modeling.serving.encoder_layers_csezoo import cache_argument
from csezoo.training.errors import UserError
from csezoo.training.loop.building import build
from csezoo.training.recipes import make_recipe
from tests.conftest import NO_DROPOUT, tiny_config
from tests.formulas import array, linear, numpy_info_nce
from tests.methods.diffaug import L, diffaug, numpy_prefixes
from tests.tiny import batch, in_templates, one_view


def prompted(kind="bert", templates=1, **changes):
    ids = [[[2, 10], [4, 11, 3]], [[2, 12, 13], [14, 4, 3]]][:templates]
    options = {"pooling": "prompt", "prompts": ["a {sentence} {mask}"] * templates, "prompt_token_ids": ids}
    return diffaug(kind, mask_token_id=4, denoise="train", **options, **changes)


def numpy_attention(layer, hidden, prefix_keys, prefix_values, real):
    """softmax(Q [P_k; K]^T / sqrt(d)) [P_v; V] of one sentence's real tokens, `(L, H)`."""
    hidden = array(hidden)[real]
    q, k, v = (linear(projection, hidden) for projection in (layer.query, layer.key, layer.value))
    k, v = np.concatenate([prefix_keys, k]), np.concatenate([prefix_values, v])
    width = layer.attention_head_size
    heads = []
    for start in range(0, q.shape[1], width):
        own = slice(start, start + width)
        scores = np.exp(q[:, own] @ k[:, own].T / math.sqrt(width))
        heads.append(scores / scores.sum(1, keepdims=True) @ v[:, own])
    return np.concatenate(heads, axis=1)


def under_slots(model, slots, **inputs):
    """The backbone's last hidden state with only these prefix slots, and positions after all slots."""
    keys, values = numpy_prefixes(model)
    rows, tokens = inputs["input_ids"].shape
    heads, cache = model.config.backbone_config.num_attention_heads, DynamicCache()
    for layer in range(model.config.num_hidden_layers):
        both = [
            torch.from_numpy(states[layer, slots]).unflatten(1, (heads, -1)).transpose(0, 1).expand(rows, -1, -1, -1)
            for states in (keys, values)
        ]
        cache.update(*both, layer)
    first = model.config.prefix_positions + (2 if model.config.backbone_config.model_type == "roberta" else 0)
    inputs.setdefault("position_ids", first + torch.arange(tokens).expand(rows, -1))
    seen = torch.ones(rows, len(slots), dtype=torch.long)
    mask = torch.cat([seen, inputs.pop("attention_mask")], dim=1)
    past = {cache_argument(model.model.backbone): cache}
    return model.model.backbone(**inputs, attention_mask=mask, **past).last_hidden_state


def slots_of(view):
    return list(range(L)) if view == 0 else list(range(L, 2 * L))


def test_a_view_attends_only_to_its_prefix_and_the_sentence():
    model = diffaug()
    model.compute_padding()  # the rows of the layers are read below
    seen = {}
    for number, layer in enumerate(model.model.backbone.encoder.layer):
        layer.attention.self.register_forward_hook(
            lambda module, args, output, number=number: seen.update({number: (module, args[0], output[0])})
        )
    rows = batch(views=3)
    model.pool_views(**rows)
    keys, values = numpy_prefixes(model)
    for number, (module, hidden, output) in seen.items():
        hidden, output = hidden.unflatten(0, (4, 3)), output.unflatten(0, (4, 3))
        for sentence in range(4):
            for view in range(3):
                slots, real = slots_of(view), array(rows["attention_mask"][sentence, view]).astype(bool)
                expected = numpy_attention(
                    module, hidden[sentence, view], keys[number, slots], values[number, slots], real
                )
                np.testing.assert_allclose(array(output[sentence, view])[real], expected, atol=1e-12)


def test_one_forward_of_all_views_equals_one_forward_per_prefix(kind):
    model, rows = diffaug(kind), batch(views=3)
    together = model.pool_views(**rows)
    for view in range(3):
        alone = under_slots(model, slots_of(view), **{name: ids[:, view] for name, ids in rows.items()})[:, 0]
        torch.testing.assert_close(together[:, view], alone, atol=1e-12, rtol=0)


def test_both_prefixes_are_served(kind):
    model, rows = diffaug(kind), one_view(batch())
    expected = under_slots(model, list(range(2 * L)), **rows)[:, 0]
    served = model.serving_model()(**rows)
    torch.testing.assert_close(served.pooler_output, expected, atol=1e-12, rtol=0)
    assert served.last_hidden_state.shape == (4, 7, 32), "of the sentence's tokens"
    assert not model.model.prefixes.requires_grad, "they are what the table and the MLP give"


def test_a_saved_training_model_serves_its_current_prefixes(kind, tmp_path):
    model, rows = diffaug(kind).float(), one_view(batch())
    model.save_pretrained(tmp_path)
    expected = model.serving_model()(**rows).pooler_output
    assert torch.equal(AutoModel.from_pretrained(tmp_path)(**rows).pooler_output, expected)
    with torch.no_grad():
        again = AutoModelForPreTraining.from_pretrained(tmp_path)
        assert torch.equal(again.prefixes(), model.prefixes()), "and they can be trained on"


@pytest.mark.parametrize(("offset", "added"), [(None, L), (0, 0), (3, 3)])
@pytest.mark.parametrize("templates", [1, 2])
def test_the_bias_of_each_view_has_its_template_and_prefix(kind, templates, offset, added):
    model = prompted(kind, templates, denoise_length_offset=offset)
    sentences = [[20, 21, 22], [23]]
    rows = in_templates(model, sentences, views=3)
    denoised, pooled = model.pool_views(**rows), model.pool_rows(**rows)
    for i, sentence in enumerate(sentences):
        for view in range(3):
            before, after = model.config.prompt_token_ids[min(view, templates - 1)]
            length = len(sentence) + added
            positions = [*range(len(before)), *range(len(before) + length, len(before) + length + len(after))]
            template = torch.tensor([before + after])
            bias = under_slots(
                model,
                slots_of(view),
                input_ids=template,
                attention_mask=torch.ones_like(template),
                position_ids=2 * L + torch.tensor([positions]),
            )[0, (before + after).index(4)]
            torch.testing.assert_close(pooled[i, view] - denoised[i, view], bias, atol=1e-12, rtol=0)


def test_the_bias_trains_the_prefixes():
    model = prompted()
    ids = torch.tensor([[[2, 10, 20, 4, 11, 3]] * 2])
    model.prompt_biases(ids, torch.ones_like(ids))[..., 0].sum().backward()
    slots = model.prefix_encoder.embedding.weight.grad.abs().sum(1)
    assert (slots > 0).all()


def test_stage_one_is_a_cross_entropy_of_both_hypotheses_without_bias():
    model, rows = prompted(), batch(views=3)
    rows["input_ids"][..., 3] = model.config.mask_token_id
    output = model(nli_input_ids=rows["input_ids"], nli_attention_mask=rows["attention_mask"])
    expected = nli_loss(model.nli_classifier, model.project(model.pool_rows(**rows)), None)
    torch.testing.assert_close(output.loss, expected)
    assert list(output.losses) == ["nli"]


def test_stage_two_is_info_nce_plus_the_weighted_cross_entropy():
    model, rows = diffaug(nli_weight=0.5), batch(views=3)
    output = model(**rows, nli_input_ids=rows["input_ids"], nli_attention_mask=rows["attention_mask"])
    z = [array(projected) for projected in model.project(model.pool_rows(**rows)).unbind(1)]
    assert output.losses["contrastive"].item() == pytest.approx(numpy_info_nce(*z, temperature=0.05), abs=1e-9)
    torch.testing.assert_close(output.loss, output.losses["contrastive"] + 0.5 * output.losses["nli"])


def test_every_row_has_different_dropout_on_its_prefixes():
    rows = {name: value[:1].repeat(3, 1, 1) for name, value in batch().items()}
    model = diffaug(backbone=tiny_config("bert", **NO_DROPOUT), prefix_dropout=0.5)
    first, second, _ = model.train().pool_rows(**rows)
    assert not torch.allclose(first, second)
    first, second, _ = model.eval().pool_rows(**rows)
    torch.testing.assert_close(first, second, atol=1e-12, rtol=0)
    as_the_backbone = diffaug(backbone=tiny_config("bert", **NO_DROPOUT)).train()
    torch.testing.assert_close(as_the_backbone.pool_rows(**rows)[0], as_the_backbone.pool_rows(**rows)[1])


@pytest.mark.parametrize("views_module", ["prefix", "lora", "adapter"])
@pytest.mark.parametrize("views_mode", ["same", "different"])
def test_views_of_equal_texts_differ_only_if_their_modules_do(views_module, views_mode):
    rows = batch()
    rows["input_ids"][:, 1] = rows["input_ids"][:, 0]
    first, second = diffaug(views_module=views_module, views_mode=views_mode).pool_rows(**rows).unbind(1)
    assert torch.allclose(first, second, atol=1e-12, rtol=0) == (views_mode == "same")


def test_the_same_prefix_is_served_twice():
    model = diffaug(views_mode="same", reparametrisation=False)
    assert model.prefix_encoder.embedding.weight.shape == (L, 2 * 3 * 32)
    prefixes = model.serving_model().prefixes
    assert prefixes.shape == (3, 2, 2, 2 * L, 16)
    assert torch.equal(prefixes[..., :L, :], prefixes[..., L:, :])


@pytest.mark.parametrize("views_module", ["prefix", "lora"])
@pytest.mark.parametrize(
    ("stage", "changes", "trained"),
    [
        ("nli", {}, {"views", "classifier"}),
        ("nli", {"freeze_views": True, "freeze_backbone": True, "mlm_weight": 0.1}, {"views", "classifier"}),
        ("contrastive", {}, {"backbone", "views", "projection"}),
        ("contrastive", {"nli_weight": 1e-3}, {"backbone", "views", "projection", "classifier"}),
        ("contrastive", {"freeze_views": True}, {"backbone", "projection"}),
        ("contrastive", {"freeze_backbone": True}, {"views", "projection"}),
    ],
)
def test_each_stage_trains_only_its_parameters(views_module, stage, changes, trained):
    model = diffaug(views_module=views_module, special_token_ids=[0], mask_token_id=4, **changes)
    frozen = {id(parameter) for parameter in model.frozen_parameters(stage)}
    parts = {"prefix_encoder": "views", "view_adapters": "views", "nli_classifier": "classifier"}
    parts |= {"backbone": "backbone", "projection": "projection", "lm_head": "lm_head", "model.prefixes": "served"}
    left = {
        next(part for word, part in parts.items() if word in name)
        for name, parameter in model.named_parameters()
        if id(parameter) not in frozen
    }
    assert left == trained
    for parameter in model.parameters():
        if id(parameter) in frozen:
            parameter.requires_grad_(False)
    rows = batch(views=3)
    labelled = {f"nli_{name}": value for name, value in rows.items()}
    joint = labelled if changes.get("nli_weight") else {}
    model(**(labelled if stage == "nli" else {**rows, **joint})).loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad or "lm_head" in name, name


def test_returned_attentions_include_the_prefixes():
    model = diffaug().serving_model()
    model.set_attn_implementation("eager")
    attentions = model(**one_view(batch()), output_attentions=True).attentions
    assert attentions[0].shape == (4, 2, 7, 2 * L + 7)
    assert (attentions[0][..., : 2 * L] > 0).all()


def test_freeze_views_needs_a_stage_on_labelled_pairs(bases):
    with pytest.raises(UserError, match="freeze_views: .*; give --nli_steps or --nli_epochs"):
        build(make_recipe({"method": "diffaug", "base_model": str(bases["bert"]), "freeze_views": True}))
