"""Configuration of IS-BERT."""

from typing import Any

from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.keys import key


class ISBERTConfig(SentenceEncoderConfig):
    """The configuration of an IS-BERT model. `temperature` has no effect.

    Example:
        >>> ISBERTConfig().features
        [256, 256, 256]
    """

    model_type = "isbert"

    kernel_sizes: list[int] = key(
        [1, 3, 5],
        "Lengths of the n-grams in tokens, one convolution for each. They are odd, so that an n-gram has a middle "
        "token. All convolutions together compute as many features as the encoder's vectors have dimensions.",
        "[1, 99]",
    )
    activation: str = key(
        "none",
        "What follows the convolutions: `none`, as in the release, or `relu`, as in the paper (eq. 1).",
        ("none", "relu"),
    )
    pooling: str = key(
        "mean", "Must be `mean`: the vector of a sentence is the mean of its n-gram features.", ("mean",)
    )
    projection: str = key("none", "Must be `none`.", ("none",))

    takes_three_views = False
    encoded_views = 1
    reason_for_own_code = (
        "its vectors are means of n-gram features, whose convolutions are not those of sentence-transformers"
    )

    @classmethod
    def published_keys(cls, csezoo: dict[str, Any]) -> dict[str, Any]:
        ngrams = {key: value for key, value in csezoo.get("ngrams", {}).items() if key != "features"}
        return super().published_keys(csezoo) | ngrams

    def check(self) -> None:
        super().check()
        if self.pooled_size != self.hidden_size:
            raise ValueError(
                f"base_model: its layers make {self.pooled_size} dimensions of {self.hidden_size}, but isbert "
                "compares sentences with tokens; choose another method"
            )
        if any(size % 2 == 0 for size in self.kernel_sizes):
            raise ValueError(f"kernel_sizes: {self.kernel_sizes} must be odd numbers")
        if self.hard_negative_weight != 0:
            raise ValueError("hard_negative_weight: isbert has no hard negatives; set it to 0")

    @property
    def features(self) -> list[int]:
        """How many features each convolution computes."""
        kinds = len(self.kernel_sizes)
        return [(self.hidden_size + kind) // kinds for kind in range(kinds)]

    def view_columns(self, columns: int) -> list[int]:
        if columns > 1:
            raise ValueError(f"text_columns: isbert needs one text column, not {columns}; its positives are n-grams")
        return [0]
