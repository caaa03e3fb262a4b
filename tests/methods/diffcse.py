"""DiffCSE: what the tests of methods know of it, and tiny models of it."""

import torch

from csezoo.modeling import DiffCSEConfig, DiffCSEForContrastiveLearning
from tests.conftest import tiny_config
from tests.methods.tested import PASS, Tested

DISTILLED = {"model_type": "distilbert", "dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2, "vocab_size": 300}
TESTED = Tested(
    others={
        "neutral": {"rtd_weight": 0.0},
        "all-edits": {"edit": "all", "generator_config": DISTILLED},
        "corrective": {"prediction": "corrective_lm", "projection": "tanh", "condition_on": "pooled"},
    },
    neutral={"rtd_weight": 0.0},
    # Nothing masked, so nothing drawn: the generator's own guesses at every position are the edit.
    exact={"rtd_mask_ratio": 0.0, "rtd_weight": 1.0, "generator_dropout": False},
    passes=(PASS, ("BertForMaskedLM", "nothing", 16), PASS),
)
MASK, SPECIAL = 4, [0, 1, 2, 3, 4]


def diffcse(kind="bert", **changes):
    torch.manual_seed(0)
    config = DiffCSEConfig(backbone_config=tiny_config(kind), mask_token_id=MASK, special_token_ids=SPECIAL, **changes)
    return DiffCSEForContrastiveLearning(config).double()


def sentences(kind="bert", views=2):
    """Two sentences with their special tokens, the second one padded."""
    cls, sep, pad = {"bert": (2, 3, 0), "roberta": (0, 2, 1)}[kind]
    rows = torch.tensor([[cls, 10, 11, 12, 13, sep], [cls, 20, 21, sep, pad, pad]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    return {"input_ids": rows[:, None].repeat(1, views, 1), "attention_mask": mask[:, None].repeat(1, views, 1)}


def writing(model, guesses):
    """The model with a generator that always returns these tokens `(N, T)`."""
    calls = []

    def generator(input_ids, attention_mask):
        calls.append(input_ids)
        one_hot = torch.nn.functional.one_hot(guesses, model.config.vocab_size).double()
        return type("Output", (), {"logits": 1e4 * one_hot})

    model.generator.forward = generator
    return model, calls
