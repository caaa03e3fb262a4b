"""Contrastive Tension: its configuration, its models, its recipes and its cards."""

from .configuration import ContrastiveTensionConfig
from .model import ContrastiveTensionForContrastiveLearning, ContrastiveTensionModel

METHOD = (ContrastiveTensionConfig, ContrastiveTensionModel, ContrastiveTensionForContrastiveLearning)
