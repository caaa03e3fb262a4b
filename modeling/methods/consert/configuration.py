"""Configuration of ConSERT."""

from random import Random

from ...contrastive.configuration import PLAIN_POOLINGS, SentenceEncoderConfig
from ...contrastive.keys import key

VIEWS = ("none", "shuffle", "token_cutoff", "feature_cutoff")
# Poolings that read one token, or look for one.
OF_A_PLACE = ("cls", "last", "prompt")
CHANGES = (
    "How each copy of a sentence is changed (paper, section 3.2). `shuffle` puts its word pieces in random order, "
    "`token_cutoff` sets the embeddings of some tokens to zero, `feature_cutoff` sets some features of all its "
    "embeddings to zero."
)


class ConSERTConfig(SentenceEncoderConfig):
    """The configuration of a ConSERT model.

    Example:
        >>> ConSERTConfig(second_view="none").edit_sentence([[1, 2, 3], [1, 2, 3]], Random(0))
        [[1, 2, 3], [1, 2, 3]]
    """

    model_type = "consert"

    first_view: str = key("feature_cutoff", CHANGES, VIEWS)
    second_view: str = key("shuffle", CHANGES, VIEWS)
    cutoff_rate: float = key(
        0.2, "Share of the tokens or features that are cut off: 0.2 for features in the release.", "[0, 1)"
    )
    shuffle_special_tokens: bool = key(
        True,
        "Whether `shuffle` moves [CLS] and [SEP] too, as the release does; the paper does not say. If pooling reads "
        "one token, special tokens always keep their places.",
    )
    in_view_negatives: bool = key(
        True,
        "Use the other sentences of both views as negatives, as NT-Xent does (eq. 1). Otherwise only those of the "
        "other view, as in SimCSE.",
    )
    training_pooling: str | None = key(
        None,
        "Pooling in training, if it differs from that at test. The release trains with the `mean` of the last "
        "layer and tests with `last2_mean`; the paper names only the latter. By default it is `pooling`.",
        PLAIN_POOLINGS,
    )
    temperature: float = key(0.1, "τ; 0.1 in the paper.")

    @property
    def views(self) -> tuple[str, str]:
        return self.first_view, self.second_view

    def edit_sentence(self, views: list[list[int]], draw: Random) -> list[list[int]]:
        """Put the word pieces of a view in random order, if it is `shuffle`."""
        edited = [list(pieces) for pieces in views]
        for pieces, kind in zip(edited, self.views, strict=False):
            if kind == "shuffle":
                draw.shuffle(pieces)
        return edited

    @property
    def edits_special_tokens(self) -> bool:
        return self.shuffle_special_tokens and (self.training_pooling or self.pooling) not in OF_A_PLACE

    @property
    def cuts_off(self) -> bool:
        return any(kind.endswith("cutoff") for kind in self.views)

    @property
    def takes_three_views(self) -> bool:
        return not (self.cuts_off or self.in_view_negatives)  # both are defined for pairs

    @property
    def reason_for_whole_batch(self) -> str | None:
        if self.cuts_off:
            return "cut-offs (first_view, second_view) are drawn for the complete batch"
        return super().reason_for_whole_batch
