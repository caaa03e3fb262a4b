"""SG-OPT: the twin, its views, the losses, and what is trained."""

import numpy as np
import pytest
import torch

from csezoo.modeling import SGOPTConfig, SGOPTForContrastiveLearning
from tests.formulas import linear, numpy_self_guided
from tests.tiny import batch, training_model


def sgopt(**changes):
    return training_model("sgopt", backbone={}, **{"projection_size": 24, **changes})


def numpy_gelu_head(head, vectors):
    def gelu(x):
        return 0.5 * x * (1 + torch.erf(torch.from_numpy(x) / 2**0.5).numpy())

    for layer in (head.expand, head.mix):
        vectors = gelu(linear(layer, vectors))
    return vectors


@pytest.mark.parametrize("view_pooling", ["max", "mean"])
@pytest.mark.parametrize(("first", "last"), [(0, None), (1, 2)])
def test_the_loss_is_opt3_over_the_twins_pooled_layers(view_pooling, first, last):
    model = sgopt(
        view_pooling=view_pooling, first_view_layer=first, last_view_layer=last, regularizer_weight=0.3
    ).eval()
    with torch.no_grad():
        for parameter in model.model.backbone.parameters():
            parameter += 0.01  # the tuned one has moved
    rows = batch(views=1)
    ids, mask = rows["input_ids"][:, 0], rows["attention_mask"][:, 0]
    c = model.model.backbone(ids, attention_mask=mask).last_hidden_state[:, 0].detach().numpy()
    views = []
    for k in range(first, (3 if last is None else last) + 1):
        state = model.twin(ids, attention_mask=mask, output_hidden_states=True).hidden_states[k].detach().numpy()
        real = [state[i][mask[i].bool().numpy()] for i in range(len(state))]  # padding takes no part
        views.append([getattr(tokens, view_pooling)(0) for tokens in real])
    views = np.array(views).transpose(1, 0, 2)
    expected = numpy_self_guided(
        numpy_gelu_head(model.projection, c), numpy_gelu_head(model.projection, views), "opt3", None, 0.01
    )
    pairs = zip(model.model.backbone.parameters(), model.twin.parameters(), strict=True)
    distance = sum(((p - q) ** 2).sum().item() for p, q in pairs)
    output = model(**rows)
    assert output.losses["contrastive"].item() == pytest.approx(expected, abs=1e-6)
    assert output.losses["regularizer"].item() == pytest.approx(distance, rel=1e-9)
    assert output.loss.item() == pytest.approx(expected + 0.3 * distance, abs=1e-5)


@pytest.mark.parametrize("variant", ["base", "opt1", "opt2"])
def test_other_variants_draw_one_layer_for_each_sentence(variant):
    model = sgopt(variant=variant).eval()
    rows = batch(sentences=32, views=1)
    all_views = model.guiding_views(rows["input_ids"][:, 0], rows["attention_mask"][:, 0])  # (32, 4, H)
    pooled = model.pool_views(**rows)
    assert pooled.shape == (32, 2, 32)
    matches = (all_views == pooled[:, 1:]).all(-1)  # (32, 4)
    assert matches.any(1).all(), "each guide is a layer's view of the same sentence"
    assert len(set(matches.int().argmax(1).tolist())) == 4, "every layer is drawn"
    assert torch.isfinite(model(**rows).loss)


def test_twin_and_embedding_layer_are_not_trained():
    model = sgopt()
    model.start_from(model.model.backbone)
    for mine, twins in zip(model.model.backbone.parameters(), model.twin.parameters(), strict=True):
        assert torch.equal(mine, twins)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.train()
    model(**batch(views=1)).loss.backward()
    optimizer.step()
    for name, tensor in model.state_dict().items():
        fixed = name.startswith("twin.") or ".embeddings." in name
        assert torch.equal(tensor, before[name]) == fixed, name


def test_what_a_stage_froze_stays_frozen_in_training():
    model = sgopt(freeze_embeddings=False, lora_rank=2, regularizer_weight=0.0)
    for parameter in model.frozen_parameters("contrastive"):
        parameter.requires_grad_(False)
    model.train()
    assert not any(parameter.requires_grad for parameter in model.model.backbone.parameters())
    assert all(parameter.requires_grad for parameter in model.model.lora.parameters())


def test_dropout_in_the_twin_can_be_turned_off():
    rows = {name: tensor[:, 0] for name, tensor in batch(views=1).items()}
    for dropout in (True, False):
        model = sgopt(twin_dropout=dropout).train()
        first, second = (model.guiding_views(**rows) for _ in range(2))
        assert torch.equal(first, second) != dropout


def test_a_back_translation_guides_instead_of_the_sentence():
    model = sgopt().eval()
    rows = batch(views=2)
    rows["attention_mask"][1, 1, 4:] = 0  # of another length than its sentence
    pooled = model.pool_views(**rows)
    sentence, translation = ({name: tensor[:, v] for name, tensor in rows.items()} for v in range(2))
    torch.testing.assert_close(pooled[:, 1:], model.guiding_views(**translation))
    assert not torch.allclose(pooled[:, 1:], model.guiding_views(**sentence))
    embeddings = model.model(**sentence).pooler_output
    torch.testing.assert_close(pooled[:, 0], embeddings)


def test_contrastive_back_translation_needs_no_twin():
    model = sgopt(guide="self", variant="base", regularizer_weight=0.0).eval()
    assert not any(name.startswith("twin") for name in model.state_dict())
    rows = batch(views=2)
    vectors = [model.model(rows["input_ids"][:, v], rows["attention_mask"][:, v]).pooler_output for v in range(2)]
    c, h = (numpy_gelu_head(model.projection, v) for v in vectors)
    expected = numpy_self_guided(c, h[:, None], "base", [0] * 4, 0.01)
    assert model(**rows).loss.item() == pytest.approx(expected, abs=1e-6)


def test_training_starts_with_a_twin_of_the_checkpoint(tmp_path):
    served = sgopt().float().model
    served.save_pretrained(tmp_path)
    model = SGOPTForContrastiveLearning.from_pretrained(tmp_path)
    for mine, twins in zip(model.model.backbone.parameters(), model.twin.parameters(), strict=True):
        assert torch.equal(mine, twins)
        assert not twins.requires_grad
    assert not any(p.requires_grad for p in model.model.backbone.embeddings.parameters())


@pytest.mark.parametrize(("guide", "weight", "twin"), [("twin", 0.0, True), ("self", 0.1, True), ("self", 0.0, False)])
def test_there_is_a_twin_if_it_guides_or_regularizes(guide, weight, twin):
    assert SGOPTConfig(guide=guide, regularizer_weight=weight).has_twin == twin
