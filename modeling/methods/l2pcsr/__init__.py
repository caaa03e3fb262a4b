"""L2P-CSR: its configuration, its models, its recipes and its cards."""

from .configuration import L2PCSRConfig
from .model import L2PCSRForContrastiveLearning, L2PCSRModel, ascend, weakening_mask

METHOD = (L2PCSRConfig, L2PCSRModel, L2PCSRForContrastiveLearning)
__all__ = ["METHOD", "L2PCSRConfig", "L2PCSRForContrastiveLearning", "L2PCSRModel", "ascend", "weakening_mask"]
