"""IS-BERT: its configuration, its models, its recipes and its cards."""

from .configuration import ISBERTConfig
from .model import ISBERTForContrastiveLearning, ISBERTModel

METHOD = (ISBERTConfig, ISBERTModel, ISBERTForContrastiveLearning)
