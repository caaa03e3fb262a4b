"""δ and κ of DiffAug: their equations and the data they are measured on."""

import math

import numpy as np
import pytest
import torch

from csezoo.modeling import DiffAugConfig, DiffAugForContrastiveLearning
from csezoo.modeling.methods.diffaug.model import representation_divergence, weight_convergence
from tests.conftest import tiny_config
from tests.formulas import array
from tests.methods.diffaug import diffaug, numpy_prefixes
from tests.tiny import batch


def test_delta_and_kappa_equal_the_papers_equations():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 5, 8))
    expected = np.mean([math.sqrt(sum((a - b) ** 2)) for a, b in zip(first, second, strict=True)])
    delta = representation_divergence(torch.tensor(first), torch.tensor(second))
    assert delta.item() == pytest.approx(expected, abs=1e-12)

    def l21(matrix):
        return sum(math.sqrt(sum(row**2)) for row in matrix)

    layers, prefixes = rng.normal(size=(2, 3, 7, 8)), rng.normal(size=(2, 3, 4, 8))
    expected = 0.0
    for m in range(3):
        for kind in range(2):
            expected += (l21(layers[kind, m]) / 7 - l21(prefixes[kind, m]) / 4) / 6
    stacked = [torch.tensor(matrices) for matrices in (*layers, *prefixes)]
    assert weight_convergence(*stacked).item() == pytest.approx(expected, abs=1e-12)
    assert weight_convergence(*map(list, stacked)).item() == pytest.approx(expected, abs=1e-12), "lists too"


def test_diagnostics_use_only_positive_pairs_and_real_tokens():
    model, rows = diffaug(), batch(views=3)
    seen = {"key": [], "value": []}
    for layer in model.model.backbone.encoder.layer:
        for name, kept in seen.items():
            getattr(layer.attention.self, name).register_forward_hook(lambda *made, kept=kept: kept.append(made[2]))
    measured = model.diagnostics(**rows)
    premises, entailed, _ = model.pool_rows(**rows).unbind(1)
    assert measured["delta"] == pytest.approx(np.linalg.norm(array(premises - entailed), axis=1).mean(), abs=1e-9)
    real = array(rows["attention_mask"][:, :2].flatten(0, 1)).astype(bool)
    prefixes = numpy_prefixes(model)
    gaps = [
        np.linalg.norm(array(tokens)[real], axis=1).mean() - np.linalg.norm(prefix, axis=1).mean()
        for made, of_layers in zip(seen.values(), prefixes, strict=True)
        for tokens, prefix in zip(made[:3], of_layers, strict=True)
    ]
    assert measured["kappa"] == pytest.approx(np.mean(gaps), abs=1e-9)
    labelled = {name: value[:, :2] for name, value in rows.items()}
    only_first = model.diagnostics(**labelled, labels=torch.tensor([1, 0, 0, 2]))
    assert only_first["delta"] == pytest.approx(torch.dist(premises[0], entailed[0]).item(), abs=1e-9)
    assert set(measured) == {"delta", "kappa", "delta_dropout"}
    assert set(diffaug(views_module="lora").diagnostics(**rows)) == {"delta"}
    assert model.diagnostics(**labelled, labels=torch.tensor([0, 0, 0, 2])) == {}  # rows sorted by their labels


def test_the_divergence_of_dropout_is_that_of_two_readings_without_prefixes():
    def with_dropout(rate):
        torch.manual_seed(0)
        backbone = tiny_config("bert", hidden_dropout_prob=rate, attention_probs_dropout_prob=0.0)
        return DiffAugForContrastiveLearning(DiffAugConfig(backbone_config=backbone, prefix_length=3)).eval()

    model, rows = with_dropout(0.3), batch()
    ids, mask = rows["input_ids"][:, 0], rows["attention_mask"][:, 0]
    torch.manual_seed(7)
    state = torch.get_rng_state()
    measured = model.dropout_divergence(ids, mask)
    assert torch.equal(torch.get_rng_state(), state), "training continues with the dropout that it would have had"
    assert not any(module.training for module in model.modules())
    backbone = model.model.backbone.train()
    hidden = backbone(input_ids=ids.repeat(2, 1), attention_mask=mask.repeat(2, 1)).last_hidden_state
    first, second = array(hidden[:, 0]).reshape(2, 4, -1)
    assert measured == pytest.approx(np.linalg.norm(first - second, axis=1).mean(), rel=1e-5) and measured > 0
    assert with_dropout(0.0).dropout_divergence(ids, mask) == pytest.approx(0, abs=1e-5)
