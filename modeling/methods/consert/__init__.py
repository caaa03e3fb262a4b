"""ConSERT: its configuration, its models, its recipes and its cards."""

from .configuration import ConSERTConfig
from .model import ConSERTForContrastiveLearning, ConSERTModel

METHOD = (ConSERTConfig, ConSERTModel, ConSERTForContrastiveLearning)
