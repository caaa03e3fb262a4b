"""DiffCSE: its configuration, its models, its recipes and its cards."""

from .configuration import DiffCSEConfig
from .model import DiffCSEForContrastiveLearning, DiffCSEModel

METHOD = (DiffCSEConfig, DiffCSEModel, DiffCSEForContrastiveLearning)
