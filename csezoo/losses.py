"""The methods as losses for `SentenceTransformerTrainer`, see docs/training-in-your-trainer.md."""

from csezoo.training.trainers.losses import (
    DiffAugLoss,
    DiffCSELoss,
    L2PCSRLoss,
    PrdSimCSELoss,
    SGOPTLoss,
    SimCSELoss,
)
from csezoo.training.trainers.zoo_loss import ZooLoss

__all__ = ["DiffAugLoss", "DiffCSELoss", "L2PCSRLoss", "PrdSimCSELoss", "SGOPTLoss", "SimCSELoss", "ZooLoss"]
