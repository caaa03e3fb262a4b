"""SimCSE: its configuration, its models, its recipes and its cards."""

from .configuration import SimCSEConfig
from .model import SimCSEForContrastiveLearning, SimCSEModel

METHOD = (SimCSEConfig, SimCSEModel, SimCSEForContrastiveLearning)
