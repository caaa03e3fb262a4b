"""Every method, with what the tests have to know of it. A new method joins all of them with a file in this folder.

The files drive the matrix (`modeling/test_methods.py`), the law that a method is SimCSE at its neutral setting
(`test_neutral.py`), two processes (`test_distributed.py`), mini-batches, exports; and in `training/`, resuming, FSDP 2
and ZeRO, torch.compile, combinations, and the encoder passes that an update needs.
"""

from importlib import import_module
from pathlib import Path

import pytest

from csezoo.modeling import METHODS, method
from csezoo.training.recipes import load_recipe
from tests.methods.tested import Keys, Tested

TESTED: dict[str, Tested] = {name: import_module(f"tests.methods.{name}").TESTED for name in METHODS}
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
