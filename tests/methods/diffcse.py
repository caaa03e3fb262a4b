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
