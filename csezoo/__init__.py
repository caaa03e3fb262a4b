"""A model zoo of contrastive sentence embeddings: `csezoo.modeling` and `csezoo.training`.

In your own training script: `csezoo.losses`, `csezoo.for_training` and `csezoo.TrainingCallback`.
"""

from importlib import import_module
from importlib.metadata import version
from pkgutil import extend_path
from typing import Any

# In a clone, the two packages are not in this directory. An installed csezoo has them.
__path__ = extend_path(__path__, __name__)
__version__ = version("csezoo")
# Imported when they are used, because they import torch.
_TRAINERS = {"TrainingCallback": "callback", "for_training": "for_training"}


def __getattr__(name: str) -> Any:
    if name not in _TRAINERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"csezoo.training.trainers.{_TRAINERS[name]}"), name)
