"""PrdSimCSE: its configuration, its models, its recipes and its cards."""

from .configuration import PrdSimCSEConfig
from .model import PrdSimCSEForContrastiveLearning, PrdSimCSEModel

METHOD = (PrdSimCSEConfig, PrdSimCSEModel, PrdSimCSEForContrastiveLearning)
