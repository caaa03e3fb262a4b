"""PrdSimCSE: its configuration, its models, its recipes and its cards."""

from .configuration import PrdSimCSEConfig
from .model import PrdSimCSEForContrastiveLearning, PrdSimCSEModel
from .prefixes import NEGATIVE_PREFIXES, positive_prefix

METHOD = (PrdSimCSEConfig, PrdSimCSEModel, PrdSimCSEForContrastiveLearning)
__all__ = ["METHOD", "NEGATIVE_PREFIXES", "positive_prefix"]
