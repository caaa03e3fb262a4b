"""Every method, with what the tests have to know of it. A new method joins all of them with a line in `TESTED`.

The lines drive the matrix (`modeling/test_methods.py`), the law that a method is SimCSE at its neutral setting
(`test_neutral.py`), two processes (`test_distributed.py`), mini-batches, exports; and in `training/`, resuming, FSDP 2
and ZeRO, torch.compile, combinations, and the encoder passes that an update needs.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from csezoo.modeling import method
from csezoo.training.recipes import load_recipe

Keys = dict[str, object]
# Of 8 sentences in two views: the encoder's class, what its result is differentiated by, the rows.
PASS = ("BertModel", "parameters", 16)
DISTILLED = {"model_type": "distilbert", "dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2, "vocab_size": 300}


@dataclass(frozen=True)
class Tested:
    """What the tests have to know of a method.

    Args:
        settings: of its configuration, for a tiny model; a recipe of its runs has them too, but for `batch_size`.
        others: more settings that the matrix covers, by a name for each.
        neutral: the setting at which it is SimCSE; None for a method that is no change of SimCSE.
        exact: the setting at which nothing is drawn and nothing is chaotic, so that two processes give the numbers of
            one.
        recipe: more keys of its runs. Where they ask for a stage on labelled pairs, the runs get triplets.
        views: rows of a sentence in the batches of `exact`.
        passes: the encoder passes that an update on 8 sentences needs.
        combinations: other methods that it is trained and resumed with, each as `--method` takes it.
        own_code: the names of the settings that have no plain form; `""` is that of `settings`.
    """

    settings: Keys = field(default_factory=dict)
    others: dict[str, Keys] = field(default_factory=dict)
    neutral: Keys | None = field(kw_only=True)
    exact: Keys = field(default_factory=dict)
    recipe: Keys = field(default_factory=dict)
    views: int = 2
    passes: tuple[tuple[str, str, int], ...] = (PASS,)
    combinations: tuple[str, ...] = ()
    own_code: tuple[str, ...] = ()


TESTED = {
    "simcse": Tested(
        others={
            "batchnorm": {"projection": "batchnorm"},
            "kept-projection": {"projection_at_test": True},
            "mlm-transform": {"projection": "mlm_transform", "projection_at_test": True},
            "mlm": {"mlm_weight": 0.1},
            "mean": {"pooling": "mean", "projection": "none"},
            "nli": {"nli_classes": 3},
            "triplets": {"nli_classes": 2, "nli_objective": "contrastive"},
            "whitening": {"whitening_size": 8},
            "flow": {"flow_width": 4},
            "average": {"ema_decay": 0.5},
            "lora": {"lora_rank": 3},
            "matryoshka": {"matryoshka_dims": [4, 16], "matryoshka_weights": [0.5, 1.0]},
        },
        neutral={},
        own_code=("flow",),
    ),
    "prdsimcse": Tested(
        neutral={"negative_prefix": "none", "positive_prefix": "none", "denominator": "own"},
        # The default prefix is for sentences of eight words and more.
        exact={"positive_prefix": "one-um"},
        views=3,
        passes=(("BertModel", "parameters", 24),),  # its second prefix makes a negative
        combinations=("prdsimcse+l2pcsr",),
    ),
    "consert": Tested(
        others={
            "cutoff": {"first_view": "none", "second_view": "token_cutoff", "in_view_negatives": False},
            "two-poolings": {"pooling": "last2_mean", "training_pooling": "mean", "projection": "none"},
        },
        neutral={"first_view": "none", "second_view": "none", "in_view_negatives": False},
        exact={"cutoff_rate": 0.0},
    ),
    "contrastive_tension": Tested(
        others={"own": {"negative_pairs": "own"}}, neutral=None, passes=(("BertModel", "parameters", 8),) * 2
    ),
    "isbert": Tested(
        others={"unigrams": {"kernel_sizes": [1]}, "rectified": {"activation": "relu"}},
        neutral=None,
        views=1,
        passes=(("BertModel", "parameters", 8),),
        own_code=("", "unigrams", "rectified"),
    ),
    "sgopt": Tested(
        {"projection_size": 48},
        others={"base": {"variant": "base", "twin_dropout": False, "view_pooling": "mean"}},
        neutral={"guide": "self", "variant": "opt2", "regularizer_weight": 0.0, "freeze_embeddings": False},
        views=1,
        passes=(("BertModel", "parameters", 8), ("BertModel", "nothing", 8)),
    ),
    "diffcse": Tested(
        others={
            "neutral": {"rtd_weight": 0.0},
            "all-edits": {"edit": "all", "generator_config": DISTILLED},
            "corrective": {"prediction": "corrective_lm", "projection": "tanh", "condition_on": "pooled"},
        },
        neutral={"rtd_weight": 0.0},
        # Nothing masked, so nothing drawn: the generator's own guesses at every position are the edit.
        exact={"rtd_mask_ratio": 0.0, "rtd_weight": 1.0, "generator_dropout": False},
        passes=(PASS, ("BertForMaskedLM", "nothing", 16), PASS),
    ),
    "l2pcsr": Tested(
        others={
            "released": {
                "token_update": "sign",
                "token_step_size": 0.1,
                "feature_step_size": 0.1,
                "feature_mask_scope": "shared",
                "attend_padding": True,
            },
            "noise": {"weakening": "noise"},
        },
        neutral={"threshold": 0.0},
        # Whatever is drawn first, nothing is weakened at first, and every step goes all the way to 0 or 1.
        exact={"threshold": 1e-9, "token_update": "sign", "token_step_size": 1.0, "feature_step_size": 1e6},
        passes=(*[("BertModel", "masks", 16)] * 4, PASS),
        combinations=("l2pcsr+diffcse",),
    ),
    "diffaug": Tested(
        others={
            "same": {"views_mode": "same", "reparametrisation": False, "mlm_weight": 0.1},
            "lora": {"views_module": "lora", "nli_classes": 0},
            "adapter": {"views_module": "adapter", "projection_at_test": True},
        },
        neutral={"prefix_length": 0, "nli_classes": 0},
        recipe={"nli_steps": 3, "max_steps": 3, "nli_weight": 0.1},
        combinations=("diffaug+diffcse",),
        own_code=("", "same", "adapter"),
    ),
}
# The settings of the matrix, by method or method-name.
CONFIGS = {name: tested.settings for name, tested in TESTED.items()} | {
    f"{name}-{other}": {**tested.settings, **changes}
    for name, tested in TESTED.items()
    for other, changes in tested.others.items()
}
WITHOUT_PLAIN_FORM = {
    f"{name}-{other}" if other else name for name, tested in TESTED.items() for other in tested.own_code
}
COMBINATIONS = [name for tested in TESTED.values() for name in tested.combinations]
RUNS = [*TESTED, *COMBINATIONS]


# Of the tests that compare whole runs: SimCSE always, the others with the slow tests.
SIMCSE_FIRST = [name if name == "simcse" else pytest.param(name, marks=pytest.mark.slow) for name in TESTED]


def exact(name: str) -> Keys:
    """The setting of a method, or of several joined by `+`, at which two processes must give the numbers of one."""
    keys: Keys = {}
    for one in name.split("+"):
        keys |= TESTED[one].settings | TESTED[one].exact
    return keys


def run_keys(name: str, generator: Path, triplets: Keys | None = None) -> Keys:
    """The keys of a recipe that trains a method, or several joined by `+`, in a few seconds.

    Args:
        generator: a masked language model's directory, for a method that needs one.
        triplets: the keys that name labelled triplets; without them there is no stage on labelled pairs.
    """
    config = method(name)[0]()
    # The tests' command lines start from SimCSE's recipe, whose values are not those of every method.
    keys: Keys = {key: getattr(config, key) for key in load_recipe("simcse-bert-base-uncased").model}
    keys |= {"method": name}
    for one in name.split("+"):
        keys |= {key: value for key, value in TESTED[one].settings.items() if key != "batch_size"}
        keys |= {} if triplets is None else TESTED[one].recipe
    keys |= triplets if triplets and "nli_steps" in keys else {}
    return keys | ({"generator": str(generator)} if config.needs_generator else {})
