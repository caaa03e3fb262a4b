"""The functions that code outside of the zoo calls keep their modules, their names and their parameters."""

import importlib
import inspect

import pytest

PUBLIC = {
    "objectives": {
        "info_nce": "anchors positives hard_negatives temperature hard_negative_weight",
        "prefix_contrastive": "anchors positives negatives temperature denominator",
        "self_guided": "embeddings views temperature variant layers",
        "parameter_distance": "tuned fixed",
        "replaced_token_detection": "logits labels attention_mask reduction",
        "alignment": "x y",
        "uniformity": "x",
    },
    "pooling": {
        "pool": "hidden_states attention_mask mode",
        "TanhProjection": "hidden_size",
        "BatchNormProjection": "hidden_size",
    },
    "methods.l2pcsr": {
        "weakening_mask": "token_probability feature_probability threshold",
        "ascend": "probability gradient step_size mode",
    },
    "methods.diffaug": {
        "representation_divergence": "first second",
        "weight_convergence": "layer_keys layer_values prefix_keys prefix_values",
    },
    "methods.prdsimcse": {"positive_prefix": "sentence kind"},
}


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [(module, name, parameters) for module, names in PUBLIC.items() for name, parameters in names.items()],
)
def test_a_public_function_takes_what_it_promises(module, name, parameters):
    function = getattr(importlib.import_module(f"csezoo.modeling.{module}"), name)
    taken = list(inspect.signature(function).parameters)
    assert [parameter for parameter in taken if parameter in parameters.split()] == parameters.split()
