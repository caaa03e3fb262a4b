"""SimCSE's configuration."""

from typing import Any

from ...contrastive.configuration import SentenceEncoderConfig


class SimCSEConfig(SentenceEncoderConfig):
    """The configuration of SimCSE: the settings of `SentenceEncoderConfig` and no others.

    Example:
        >>> SimCSEConfig(pooling="mean").hidden_size
        768
    """

    model_type = "simcse"

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
