"""DiffAug: its configuration, its models, its recipes and its cards."""

from .configuration import DiffAugConfig
from .measures import representation_divergence, weight_convergence
from .model import DiffAugForContrastiveLearning, DiffAugModel

METHOD = (DiffAugConfig, DiffAugModel, DiffAugForContrastiveLearning)
__all__ = ["METHOD", "representation_divergence", "weight_convergence"]
