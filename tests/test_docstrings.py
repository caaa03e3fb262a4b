"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import torch

import csezoo.modeling
import csezoo.training

MODULES = [
    module.name
    for package in (csezoo.modeling, csezoo.training)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator")
def test_examples_run(name, named_models, monkeypatch):
    if ".trainers." in name:
        monkeypatch.chdir(named_models)
    module = importlib.import_module(name)
    torch.manual_seed(0)
    examples = doctest.testmod(module, extraglobs={"torch": torch, "np": np})
    assert examples.failed == 0
