"""δ and κ of DiffAug: their equations and the data they are measured on."""

import math

import numpy as np
import pytest
import torch

from csezoo.modeling.modeling_diffaug import representation_divergence, weight_convergence
from tests.modeling.test_diffaug import array, diffaug, numpy_prefixes
from tests.modeling.test_methods import batch


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
    assert set(diffaug(views_module="lora").diagnostics(**rows)) == {"delta"}
