"""SimCSE's configuration."""

from typing import Any

from .configuration_sentence_encoder import SentenceEncoderConfig


class SimCSEConfig(SentenceEncoderConfig):
    """The zoo's neutral method: every setting of `SentenceEncoderConfig`, none of its own.

    Example:
        >>> SimCSEConfig(pooling="mean").hidden_size
        768
    """

    model_type = "simcse"

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
