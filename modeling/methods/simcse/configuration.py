"""SimCSE's configuration."""

from ...contrastive.configuration import SentenceEncoderConfig


class SimCSEConfig(SentenceEncoderConfig):
    """The configuration of SimCSE: the settings of `SentenceEncoderConfig` and no others.

    Example:
        >>> SimCSEConfig(pooling="mean").hidden_size
        768
    """

    model_type = "simcse"
