"""Recipes, data, the training loop, evaluation, publishing and the command line."""

import os

from .cards.listing import Model, list_models

# Where a Hub repository has only a pickle, transformers would read the pull request of a conversion bot instead, or
# send the user's token to a service that makes one. transformers reads this variable at each load.
os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"

__all__ = ["Model", "list_models"]
