"""DiffAug: its configuration, its models, its recipes and its cards."""

from .configuration import DiffAugConfig
from .model import DiffAugForContrastiveLearning, DiffAugModel

METHOD = (DiffAugConfig, DiffAugModel, DiffAugForContrastiveLearning)
