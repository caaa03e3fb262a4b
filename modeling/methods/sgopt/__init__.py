"""SG-OPT: its configuration, its models, its recipes and its cards."""

from .configuration import SGOPTConfig
from .model import SGOPTForContrastiveLearning, SGOPTModel

METHOD = (SGOPTConfig, SGOPTModel, SGOPTForContrastiveLearning)
