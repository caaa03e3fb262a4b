"""Configuration of IS-BERT."""

from typing import Any

from ...contrastive.configuration import SentenceEncoderConfig


class ISBERTConfig(SentenceEncoderConfig):
    """The configuration of an IS-BERT model. `temperature` has no effect.

    Args:
        kernel_sizes: lengths of the n-grams in tokens, one convolution for each. They are odd, so that an n-gram has a
            middle token. All convolutions together compute as many features as the encoder's vectors have dimensions.
        activation: what follows the convolutions: `none`, as in the release, or `relu`, as in the paper (eq. 1).
        pooling: must be `mean`: the vector of a sentence is the mean of its n-gram features.
        projection: must be `none`.

    Example:
        >>> ISBERTConfig().features
        [256, 256, 256]
    """

    model_type = "isbert"
    allowed = {
        "kernel_sizes": "[1, 99]",
        "activation": ("none", "relu"),
        "pooling": ("mean",),
        "projection": ("none",),
    }

    def __init__(
        self,
        kernel_sizes: list[int] = [1, 3, 5],  # noqa: B006  # nothing changes it
        activation: str = "none",
        pooling: str = "mean",
        projection: str = "none",
        **kwargs: Any,
    ):
        self.kernel_sizes = kernel_sizes
        self.activation = activation
        super().__init__(pooling=pooling, projection=projection, **kwargs)

    @classmethod
    def published_keys(cls, csezoo: dict[str, Any]) -> dict[str, Any]:
        ngrams = {key: value for key, value in csezoo.get("ngrams", {}).items() if key != "features"}
        return super().published_keys(csezoo) | ngrams

    def check(self) -> None:
        super().check()
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

    @property
    def takes_three_views(self) -> bool:
        return False

    @property
    def encoded_views(self) -> int:
        return 1

    @property
    def needs_own_code(self) -> str | None:
        return "its vectors are means of n-gram features, whose convolutions are not those of sentence-transformers"
